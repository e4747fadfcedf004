"""
List the keys of a config that this project adds to Detectron2's or checks: default, what it does,
what values it may have, and with what it is read. docs/keys.md is the whole list.

    ocr-panoptic keys [PART OF A NAME ...]
"""

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from ocr_panoptic.nearest import did_you_mean

from .arguments import CommandParser

HEADING = """\
# The keys of a config

What `KEY VALUE` on the command line, or a config, can set besides
[Detectron2's keys](https://detectron2.readthedocs.io/en/latest/modules/config.html#yaml-config-references):
each with its default. What stands after "With ..." is read with that alone, and refused elsewhere.
"""  # noqa: E501


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="list keys with all of these")
    return parser


def run(args: argparse.Namespace) -> int:
    found = "\n".join(key_lines([part.lower() for part in args.parts])).rstrip()
    if not args.parts:
        print(HEADING)
    print(found or f"No key has {' '.join(args.parts)} in its name.{_nearest(args.parts[0])}")
    return 0 if found else 1


def _nearest(part: str) -> str:
    from ocr_panoptic.config import SECTIONS

    return did_you_mean(part, [key.name for keys in SECTIONS.values() for key in keys])


def key_lines(parts: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of the page, a key each, for the keys with all parts in their names."""
    from detectron2.config import get_cfg

    from ocr_panoptic.config import SECTIONS, Key, add_ocr_config
    from ocr_panoptic.config_rules import value_of
    from ocr_panoptic.engine.config_checks import conditions

    def read_with(key: Key) -> str:
        return ", and ".join(condition.text for condition in conditions(key))

    cfg = get_cfg()
    add_ocr_config(cfg)
    for title, keys in SECTIONS.items():
        found = [key for key in keys if all(part in key.name.lower() for part in parts)]
        if found:
            yield f"## {_linked(title)}\n"
        for settings, group in groupby(found, read_with):
            if settings:
                yield f"With {settings}:\n"
            for key in group:
                allowed = key.allowed.text() and f"*{key.allowed.text()}*"
                said = " ".join(filter(None, [_linked(key.sentence), allowed]))
                yield f"- `{key.name} {value_of(cfg, key.name)!r}`{said and f': {said}'}"
            yield ""


def _linked(text: str) -> str:
    """Return a text whose paths of pages, from the repository's root, are links."""
    return re.sub(r"(?:\w+/)+(\w+\.md)", _link, text)


def _link(match: re.Match) -> str:
    return f"[{match[1]}]({os.path.relpath(match[0], 'docs')})"
