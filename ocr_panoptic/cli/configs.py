"""
List the names and the purposes of the package's configs. --config-file accepts these names.

    ocr-panoptic configs [PART OF A NAME ...]
"""

import argparse

from ocr_panoptic.config_names import config_names, config_purpose

from .arguments import CommandParser


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="list names with all these parts")
    return parser


def run(args: argparse.Namespace) -> int:
    found = [
        name for name in config_names() if all(part.lower() in name.lower() for part in args.parts)
    ]
    for name in found:
        print(f"{name}\n    {config_purpose(name)}")
    if not found:
        print(f"No config's name contains {' '.join(args.parts)}.")
    return 0 if found else 1
