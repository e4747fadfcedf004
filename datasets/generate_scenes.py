#!/usr/bin/env python
"""Generate the sample data: small scenes in COCO panoptic format (JPEG, PNG, JSON), or, with
--materials, tiles under unknown light, whose classes can only be told with context."""

import argparse
from pathlib import Path

from ocr_panoptic.data import datasets_root
from ocr_panoptic.data.published.scenes import generate_scenes
from ocr_panoptic.data.published.tiles import generate_tiles
from ocr_panoptic.engine import run_program


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    none = argparse.SUPPRESS
    parser.add_argument(
        "--output",
        type=Path,
        default=none,
        help=f"folder to write raw/ into (default: scenes or tiles in {datasets_root()})",
    )
    parser.add_argument("--train", type=int, default=400, help="training images")
    parser.add_argument("--val", type=int, default=60, help="validation images")
    parser.add_argument("--size", type=int, default=160, help="side of the images in pixels")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal bytes")
    parser.add_argument("--materials", type=int, default=none, help="draw tiles of so many classes")
    parser.add_argument(
        "--difficulty", type=float, default=none, help="of the tiles: 0 to 1, a pixel tells nothing"
    )
    args = vars(parser.parse_args(argv))
    args.setdefault("output", datasets_root() / ("tiles" if "materials" in args else "scenes"))
    shared = [args[name] for name in ("output", "train", "val", "size", "seed")]
    if "materials" in args:
        generate_tiles(*shared, args["materials"], args.get("difficulty", 1.0))
    elif "difficulty" in args:
        parser.error("--difficulty is of the tiles: name --materials too")
    else:
        generate_scenes(*shared)


if __name__ == "__main__":
    run_program(main)
