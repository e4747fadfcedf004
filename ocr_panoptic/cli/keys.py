"""
List the keys of a config that this project adds to Detectron2's or checks: default, what it does,
what values it may have, and with what it is read. docs/keys.md is the whole list.

    ocr-panoptic keys [PART OF A NAME ...]
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ocr_panoptic.nearest import did_you_mean

from .arguments import CommandParser

IS_LIGHT = True
PAGE = Path(__file__).parents[1] / "keys.md"


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="list keys with all of these")
    return parser


def run(args: argparse.Namespace) -> int:
    page = PAGE.read_text(encoding="utf-8")
    if not args.parts:
        print(page.rstrip())
        return 0
    found = "\n\n".join(_blocks_with(page, [part.lower() for part in args.parts]))
    nearest = did_you_mean(args.parts[0], re.findall(r"^- `([\w.]+)", page, re.MULTILINE))
    print(found or f"No key has {' '.join(args.parts)} in its name.{nearest}")
    return 0 if found else 1


def _blocks_with(page: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield the keys of a page with all parts in their names, below title and condition."""
    above: list[str] = []
    for block in page.rstrip().split("\n\n"):
        if block.startswith("## "):
            above = [block]
        elif block.startswith("With "):
            above.append(block)
        else:
            keys = [(re.match(r"- `([\w.]+)", line), line) for line in block.splitlines()]
            found = [k for name, k in keys if name and all(p in name[1].lower() for p in parts)]
            if found:
                yield from [*above, "\n".join(found)]
            above = [line for line in above if line.startswith("## ") and not found]
