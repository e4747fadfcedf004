"""
List the configs of the package with their purposes. --config-file takes their names.

    ocr-panoptic configs [PART OF A NAME ...]
"""

import argparse
import re

from ocr_panoptic.config_names import config_names, config_purpose
from ocr_panoptic.errors import did_you_mean

from .arguments import CommandParser


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="list names with all these parts")
    return parser


def run(args: argparse.Namespace) -> int:
    names = config_names()
    parts = [part.lower() for part in args.parts]
    found = [name for name in names if all(part in name.lower() for part in parts)]
    for name in found:
        print(f"{name}\n    {config_purpose(name)}")
    if not found:
        words = {word.lower() for name in names for word in re.split(r"[/_-]", name)}
        unknown = [part for part in parts if not any(part in name.lower() for name in names)]
        hint = did_you_mean((unknown or parts)[0], words)
        print(f"No config's name contains {' '.join(args.parts)}.{hint}")
    return 0 if found else 1
