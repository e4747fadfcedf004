"""
List the names and the purposes of the package's configs. --config-file accepts these names.

    ocr-panoptic configs [PART OF A NAME ...]
"""

import argparse
import re

from ocr_panoptic.config.files import config_names, config_purpose
from ocr_panoptic.errors import did_you_mean

from .arguments import CommandParser


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parts = "list only names that contain all these words"
    parser.add_argument("parts", nargs="*", metavar="PART", help=parts)
    return parser


def run(args: argparse.Namespace) -> int:
    names = config_names()
    found = [name for name in names if all(part.lower() in name.lower() for part in args.parts)]
    for name in found:
        print(f"{name}\n    {config_purpose(name)}")
    if not found:
        unknown = [part for part in args.parts if part.lower() not in " ".join(names).lower()]
        words = re.findall(r"[^/_ -]+", " ".join(names))
        hint = did_you_mean(unknown[0], words) if unknown else ""
        print(f"No config's name contains {' and '.join(args.parts)}.{hint}")
    return 0 if found else 1
