#!/usr/bin/env python
"""
Refine what any program has predicted, by the offsets of a SegFix (docs/segfix.md): label PNGs, a
panoptic JSON with its PNGs, or instances in COCO's results format.

    python tools/refine.py --predictions FOLDER|JSON --output FOLDER|JSON \\
        --config-file CONFIG --weights FILE --images FOLDER [KEY VALUE ...]
    python tools/refine.py ... --offsets FOLDER       offset files of openseg.pytorch
    python tools/refine.py ... --oracle DATA_SET      the truth's offsets: the upper bound
"""

import argparse
from pathlib import Path

from ocr_panoptic.engine import run_program
from ocr_panoptic.engine.segfix_config import load_segfix_config
from ocr_panoptic.prediction.inputs import find_inputs
from ocr_panoptic.refinement.offset_sources import (
    Offsets,
    PredictedOffsets,
    StoredOffsets,
    TrueOffsets,
)
from ocr_panoptic.refinement.prediction_files import read_image_names, refine_files


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; it is a number of at least 1")
    return int(text)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="KEY VALUE ... of the config")
    args = parser.parse_args(argv)
    if args.weights and not (args.config_file and args.images):
        parser.error("--weights needs --config-file and --images")
    if not args.weights and (args.config_file or args.images or args.opts):
        parser.error("--config-file, --images and KEY VALUE ... are of --weights")
    if args.boundary_distance and not args.oracle:
        parser.error("--boundary-distance is of --oracle")
    return args


def offsets(args: argparse.Namespace) -> Offsets:
    if args.oracle:
        return TrueOffsets(args.oracle, args.boundary_distance or 5)
    if args.offsets:
        return StoredOffsets(args.offsets)
    cfg = load_segfix_config(args.config_file, [*args.opts, "MODEL.WEIGHTS", args.weights])
    items = find_inputs(args.images, args.output, 0).items
    return PredictedOffsets(cfg, {item.name: item.source for item in items})


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    names = read_image_names(args.image_list) if args.image_list else {}
    count = refine_files(args.predictions, args.output, offsets(args), args.scale, names)
    print(f"Refined the predictions of {count} images: {args.output}")


if __name__ == "__main__":
    run_program(main)
