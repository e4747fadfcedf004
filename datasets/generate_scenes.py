#!/usr/bin/env python
"""Generate the sample data: small scenes in COCO panoptic format (JPEG, PNG, JSON)."""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    root = Path(os.getenv("DETECTRON2_DATASETS", "datasets")).expanduser().absolute()
    parser.add_argument(
        "--output", type=Path, default=root / "scenes", help="folder to write raw/ into"
    )
    parser.add_argument("--train", type=int, default=400, help="training images")
    parser.add_argument("--val", type=int, default=60, help="validation images")
    parser.add_argument("--size", type=int, default=160, help="side of the images in pixels")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal bytes")
    return parser


def main(argv: list[str] | None = None) -> None:
    args = argument_parser().parse_args(argv)
    from ocr_panoptic.data.published.scenes import generate_scenes

    generate_scenes(args.output, args.train, args.val, args.size, args.seed)


if __name__ == "__main__":
    argument_parser().parse_args()  # --help, before what takes seconds to import
    from ocr_panoptic.engine import run_program

    run_program(main)
