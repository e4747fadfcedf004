#!/usr/bin/env python
"""
Print the page docs/keys.md, which describes the config keys of this project.

    python tools/keys_page.py > docs/keys.md
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

from detectron2.config import get_cfg

from ocr_panoptic import add_ocr_config
from ocr_panoptic.config.keys import SECTIONS, Key
from ocr_panoptic.config.rules import value_of
from ocr_panoptic.config.unread import conditions

HEADING = """\
# The keys of a config

For those who write a config or `KEY VALUE` on the command line: which keys are there besides
[Detectron2's keys](https://detectron2.readthedocs.io/en/latest/modules/config.html#yaml-config-references),
and how does each work? Each has its default. Keys under "With ..." are read only with that setting, and refused elsewhere.
"""  # noqa: E501


def keys_page() -> str:
    """Return the page; each line describes a key, or adjacent keys with equal descriptions."""
    return "\n".join([HEADING, *_lines()])


def _lines() -> Iterator[str]:
    cfg = get_cfg()
    add_ocr_config(cfg)
    for title, keys in SECTIONS.items():
        yield f"## {_linked(title)}\n"
        for settings, group in groupby(keys, _read_with):
            if settings:
                yield f"With {settings}:\n"
            for text, alike in groupby(group, _text):
                names = ", ".join(f"`{key.name} {value_of(cfg, key.name)!r}`" for key in alike)
                yield f"- {names}{text}"
            yield ""


def _read_with(key: Key) -> str:
    return ", and ".join(condition.text for condition in conditions(key))


def _text(key: Key) -> str:
    """Return the description that follows a key's name and default."""
    allowed = key.allowed.text() and f"*{key.allowed.text()}*"
    text = " ".join(filter(None, [_linked(key.sentence), allowed]))
    return text and f": {text}"


def _linked(text: str) -> str:
    """Turn the paths of Markdown pages in a text, relative to the repository, into links."""
    return re.sub(r"(?:\w+/)+(\w+\.md)", _link, text)


def _link(match: re.Match) -> str:
    return f"[{match[1]}]({os.path.relpath(match[0], 'docs')})"


def main(argv: Sequence[str] | None = None) -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(argv)
    print(keys_page().rstrip())


if __name__ == "__main__":
    main()
