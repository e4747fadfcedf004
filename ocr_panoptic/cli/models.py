"""
List the published OCR models. --weights, MODEL.WEIGHTS and load() accept their names.

    ocr-panoptic models [PART ...]

The mIoU is the authors', in percent; in brackets with several scales and flips. When a model is
first used, it is downloaded to the folder of models. Files NAME.pth there are models too.
"""

import argparse

from .arguments import CommandParser


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parts = "list only rows that contain all these words"
    parser.add_argument("parts", nargs="*", metavar="PART", help=parts)
    return parser


def run(args: argparse.Namespace) -> int:
    from tabulate import tabulate

    from ocr_panoptic.checkpoint.addresses import models_folder
    from ocr_panoptic.checkpoint.published_models import MODELS, SHORT_NAMES

    short = {name: f" ({nick})" for nick, name in SHORT_NAMES.items()}
    rows = [
        {
            "name": f"{m.name}{short.get(m.name, '')}",
            "data": m.data.title,
            "classes": m.data.classes,
            "network": m.network,
            "parameters": f"{m.parameters} M",
            "mIoU": m.miou,
            "licence": m.licence,
        }
        for m in MODELS.values()
    ]
    texts = [" ".join(map(str, row.values())).lower() for row in rows]
    rows = [r for r, t in zip(rows, texts) if all(part.lower() in t for part in args.parts)]
    print(tabulate(rows, headers="keys", disable_numparse=True) or "No row has all these words.")
    there = ", ".join(sorted(file.name for file in models_folder().glob("*.pth")))
    print(f"Folder of models: {models_folder()} ({there or 'empty'})")
    return 0 if rows else 1
