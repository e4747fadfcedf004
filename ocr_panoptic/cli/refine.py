"""
Refine what any program has predicted, by the offsets of a SegFix (docs/segfix.md): label PNGs, a
panoptic JSON with its PNGs, or instances in COCO's results format.

    ocr-panoptic refine --predictions FOLDER|JSON --output FOLDER|JSON \\
        --config-file CONFIG --weights FILE --images FOLDER [KEY VALUE ...]
    ocr-panoptic refine ... --offsets FOLDER       offset files of openseg.pytorch
    ocr-panoptic refine ... --oracle DATA_SET      the truth's offsets: the upper bound
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import CommandParser, positive

if TYPE_CHECKING:
    from ocr_panoptic.workbench.refining.offset_sources import Offsets


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__, _fault)
    parser.add_argument("--predictions", required=True, type=Path)
    parser.add_argument("--output", required=True, type=Path, help="of the same kind")
    parser.add_argument(
        "--scale", type=positive, default=2, help="of the offsets; published: 2 for labels, 1 for "
        "instances",
    )  # fmt: skip
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--weights", help="of a trained SegFix")
    source.add_argument("--offsets", type=Path, help="folder of .mat files, named as the images")
    source.add_argument("--oracle", metavar="DATA_SET", help="whose truth gives the offsets")
    parser.add_argument("--config-file", help="of the SegFix")
    parser.add_argument("--images", help="folder, or list, of the images that the SegFix sees")
    parser.add_argument(
        "--boundary-distance", type=positive, help="of --oracle, in pixels (default 5)"
    )
    parser.add_argument(
        "--image-list",
        type=Path,
        help='JSON whose "images" say which file an image_id of the predictions is of',
    )
    parser.add_opts()
    return parser


def _fault(args: argparse.Namespace) -> str:
    if args.weights and not (args.config_file and args.images):
        return "--weights needs --config-file and --images"
    if not args.weights and (args.config_file or args.images or args.opts):
        return "--config-file, --images and KEY VALUE ... are of --weights"
    return (
        "--boundary-distance is of --oracle" if args.boundary_distance and not args.oracle else ""
    )


def offsets(args: argparse.Namespace) -> "Offsets":
    from ocr_panoptic.engine.segfix import load_segfix_config
    from ocr_panoptic.formats.image_sources import find_inputs
    from ocr_panoptic.workbench.refining.offset_sources import (
        PredictedOffsets,
        StoredOffsets,
        TrueOffsets,
    )

    if args.oracle:
        return TrueOffsets(args.oracle, args.boundary_distance or 5)
    if args.offsets:
        return StoredOffsets(args.offsets)
    cfg = load_segfix_config(args.config_file, [*args.opts, "MODEL.WEIGHTS", args.weights])
    items = find_inputs(args.images, args.output).items
    return PredictedOffsets(cfg, {item.name: item.source for item in items})


def run(args: argparse.Namespace) -> None:
    from ocr_panoptic.workbench.refining.prediction_files import read_image_names, refine_files

    names = read_image_names(args.image_list) if args.image_list else {}
    count = refine_files(args.predictions, args.output, offsets(args), args.scale, names)
    print(f"Refined the predictions of {count} images: {args.output}")
