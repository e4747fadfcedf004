#!/usr/bin/env python
"""
Write a page about a registered data set, panoptic or semantic: all images with their annotations,
counts and areas of the classes, sizes, segments that look like mistakes, images that are equal to
some of the validation set, and what augmentation makes of ten images.

    python tools/view_data.py --dataset city_train --output page.html
    python tools/view_data.py --dataset city_train --output page.html --config-file CONFIG \\
        [KEY VALUE ...]
"""

import argparse
from contextlib import suppress
from pathlib import Path

from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog

from ocr_panoptic.analysis.data_view import write_data_page
from ocr_panoptic.data import (
    check_files,
    register_prepared,
    register_semantic_datasets,
    register_server_splits,
)
from ocr_panoptic.engine import complete_config, load_config, run_program

# Of the data set's name, and of the one whose images must not be in it.
PARTNERS = (("train", "val"), ("train", "test"), ("trainval", "test"), ("val", "train"))


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", required=True, help="name of the data set")
    parser.add_argument("--output", required=True, type=Path, help="the page, an HTML file")
    parser.add_argument(
        "--against",
        help='data set that must have no image in common, by default NAME_val of NAME_train; "" '
        "for none",
    )
    parser.add_argument(
        "--num-images", type=int, help="look at this many, evenly spread (default: all)"
    )
    parser.add_argument("--config-file", help="show what its augmentation makes of ten images")
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="config keys and values")
    args = parser.parse_args(argv)
    if args.num_images is not None and args.num_images < 1:
        parser.error(f"--num-images is {args.num_images}, it must be at least 1")
    if args.opts and not args.config_file:
        parser.error(f"{' '.join(args.opts)}: KEY VALUE without --config-file")
    return args


def partner(dataset: str) -> str:
    """The data set that this one is compared with where none is named, if its files are there; ""
    for none."""
    known = {*DatasetCatalog.list(), *register_prepared(wanted=())}
    for own, other in PARTNERS:
        for end in ("", "_sem", "_panoptic_separated"):
            name = f"{dataset.removesuffix(f'{own}{end}')}{other}{end}"
            if dataset.endswith(f"_{own}{end}") and name in known:
                register_prepared(wanted=[name])
                with suppress(FileNotFoundError):
                    check_files([name])
                    return name
    return ""


def completed(args: argparse.Namespace) -> CfgNode | None:
    if not args.config_file:
        return None
    cfg = load_config(args.config_file, args.opts)
    cfg.DATASETS.TRAIN, cfg.DATASETS.TEST = (args.dataset,), ()
    complete_config(cfg, training=True)
    return cfg


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    register_semantic_datasets()
    register_server_splits()
    against = partner(args.dataset) if args.against is None else args.against
    register_prepared(wanted=[name for name in (args.dataset, against) if name])
    cfg = completed(args)
    page = write_data_page(args.dataset, args.output, against, args.num_images, cfg, args.workers)
    if page.faults:
        print(f"{len(page.faults)} files cannot be used; the page lists them")
    print(f"The page is {args.output}; its pictures are in {args.output.stem}_files beside it")


if __name__ == "__main__":
    run_program(main)
