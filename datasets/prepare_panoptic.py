#!/usr/bin/env python
"""Prepare a data set in COCO panoptic format for Panoptic-FPN, after checking it.

It is then known as NAME_train and NAME_val. See datasets/README.md for the format.
"""

import argparse
from pathlib import Path

from ocr_panoptic.data import (
    RawSplit,
    check_name,
    datasets_root,
    faults_listed,
    prepare_panoptic,
    warn_if_unseen,
)
from ocr_panoptic.engine import run_program


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="name of the data set")
    for split, required in (("train", True), ("val", False)):
        parser.add_argument(
            f"--{split}",
            nargs=3,
            type=Path,
            required=required,
            metavar=("IMAGES", "JSON", "PNGS"),
            help="folder of images, panoptic JSON, folder of panoptic PNGs",
        )
    parser.add_argument(
        "--output", type=Path, help="folder to write, by default $DETECTRON2_DATASETS/NAME"
    )
    parser.add_argument(
        "--channels",
        type=int,
        default=3,
        help="of the images, INPUT.CHANNELS of the configs; by default 3, in colour",
    )
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    args = parser.parse_args(argv)

    raw = {split: getattr(args, split) for split in ("train", "val")}
    splits = {split: RawSplit(*paths) for split, paths in raw.items() if paths}
    check_name(args.name)
    output = args.output or datasets_root() / args.name
    warn_if_unseen(output)
    with faults_listed(output.with_name(f"{output.name}_faults.txt")):
        manifest = prepare_panoptic(args.name, splits, output, args.workers, args.channels)
    print(f"Wrote {manifest}. Data sets: {', '.join(f'{args.name}_{split}' for split in splits)}")


if __name__ == "__main__":
    run_program(main)
