"""
Write a page about a registered data set, panoptic or semantic: all images with their annotations,
counts and areas of the classes, sizes, segments that look like mistakes, images that are equal to
some of the validation set, and what augmentation makes of ten images.

    ocr-panoptic view --dataset city_train --data city.yaml --output page.html
        [--config-file CONFIG] [KEY VALUE ...]
"""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import CommandParser, positive

if TYPE_CHECKING:
    from detectron2.config import CfgNode

# Of the data set's name, and of the one whose images must not be in it.
PARTNERS = (("train", "val"), ("train", "test"), ("trainval", "test"), ("val", "train"))


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__, _fault)
    parser.add_argument("--dataset", required=True, help="name of the data set")
    parser.add_data()
    parser.add_argument("--output", required=True, type=Path, help="the page, an HTML file")
    parser.add_argument(
        "--against",
        help='data set that must have no image in common, by default NAME_val of NAME_train; "" '
        "for none",
    )
    parser.add_argument(
        "--num-images", type=positive, help="look at this many, evenly spread (default: all)"
    )
    parser.add_argument("--config-file", help="show what its augmentation makes of ten images")
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    parser.add_opts()
    return parser


def _fault(args: argparse.Namespace) -> str:
    alone = args.opts and not args.config_file
    return f"{' '.join(args.opts)}: KEY VALUE without --config-file" if alone else ""


def partner(dataset: str, files: list[str]) -> str:
    """The data set that this one is compared with where none is named, if its files are there; ""
    for none."""
    from detectron2.data import DatasetCatalog

    from ocr_panoptic.data.published.register import register_published
    from ocr_panoptic.data.register import check_files, register_in_use

    for own, other in PARTNERS:
        for end in ("", "_sem", "_panoptic_separated"):
            name = f"{dataset.removesuffix(f'{own}{end}')}{other}{end}"
            if dataset.endswith(f"_{own}{end}"):
                with suppress(FileNotFoundError):
                    register_published([name])
                    register_in_use(files, [name])
                    if name in DatasetCatalog:
                        check_files([name])
                        return name
    return ""


def completed(args: argparse.Namespace) -> "CfgNode | None":
    from ocr_panoptic.engine import complete_config
    from ocr_panoptic.engine.config_files import load_arguments

    if not args.config_file:
        return None
    cfg = load_arguments(args)
    cfg.DATASETS.TRAIN, cfg.DATASETS.TEST = (args.dataset,), ()
    complete_config(cfg, training=True)
    return cfg


def run(args: argparse.Namespace) -> None:
    from ocr_panoptic.data.published.register import register_published
    from ocr_panoptic.data.register import register_in_use
    from ocr_panoptic.workbench.looking.data_view import findings_file, write_data_page

    against = partner(args.dataset, args.data) if args.against is None else args.against
    names = [name for name in (args.dataset, against) if name]
    register_published(names)
    register_in_use(args.data, names)
    cfg = completed(args)
    page = write_data_page(args.dataset, args.output, against, args.num_images, cfg, args.workers)
    if page.faults:
        print(f"{len(page.faults)} files cannot be used; the page lists them")
    print(
        f"The page is {args.output}; its pictures are in {args.output.stem}_files beside it, all "
        f"that it has found in {findings_file(args.output)}"
    )
