#!/usr/bin/env python
"""Check a folder of images and label PNGs, and register it for semantic segmentation.

It is then known as NAME_train and NAME_val. See datasets/README.md for the file of classes.
"""

import argparse
from pathlib import Path

from ocr_panoptic.data import (
    SemanticSplit,
    check_name,
    datasets_root,
    faults_listed,
    prepare_semantic,
    warn_if_unseen,
)
from ocr_panoptic.engine import run_program


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="name of the data set")
    parser.add_argument(
        "--classes", required=True, type=Path, help="YAML or JSON: names, colours, labels"
    )
    for split, required in (("train", True), ("val", False)):
        parser.add_argument(
            f"--{split}",
            nargs=2,
            type=Path,
            required=required,
            metavar=("IMAGES", "LABELS"),
            help="folder of images, folder of label PNGs of the same names",
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
    splits = {split: SemanticSplit(*paths) for split, paths in raw.items() if paths}
    check_name(args.name)
    output = args.output or datasets_root() / args.name
    warn_if_unseen(output)
    with faults_listed(output.with_name(f"{output.name}_faults.txt")):
        manifest = prepare_semantic(
            args.name, args.classes, splits, output, args.workers, args.channels
        )
    print(f"Wrote {manifest}. Data sets: {', '.join(f'{args.name}_{split}' for split in splits)}")


if __name__ == "__main__":
    run_program(main)
