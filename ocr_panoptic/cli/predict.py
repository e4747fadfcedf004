"""
Predict every image of a folder, a list or a video, and write what other programs read: panoptic
and label PNGs, confidences, COCO's JSON files. docs/prediction.md describes them.

    ocr-panoptic predict --config-file RUN [--weights FILE] --input FOLDER|LIST|VIDEO \\
        --output FOLDER [--num-gpus N] [KEY VALUE ...]

Repeat the command to go on after a stop. It ends with status 1 where an image has no results.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import CommandParser, positive

if TYPE_CHECKING:
    from detectron2.config import CfgNode

LABELS = ("train", "dataset")


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument(
        "--input", required=True, help="folder with images, list of them (.txt), image, or video"
    )
    parser.add_argument("--output", required=True, type=Path, help="folder of the results")
    parser.add_argument(
        "--labels",
        choices=LABELS,
        default=LABELS[0],
        help="of the label PNGs: 0..K-1 as in training, or those of the data set's files",
    )
    parser.add_argument("--overlays", action="store_true", help="draw them over the images, too")
    parser.add_argument(
        "--max-pixels",
        type=positive,
        help="larger images are read, seen and written in the windows of TEST.SLIDING_WINDOW "
        "(default: 50 million, or what the free memory has room for)",
    )
    parser.add_argument(
        "--eval",
        type=Path,
        help="compare with the truth: a data file, a panoptic JSON, or a folder of label PNGs",
    )
    parser.add_argument(
        "--whole-regions",
        action="store_true",
        help="of a semantic model with OCR: see images in tiles, in two passes, with the regions "
        "of the whole image",
    )
    parser.add_argument("--num-gpus", type=int, default=1, help="processes on this machine")
    parser.add_model()
    # What else engine.launch takes; several machines are torchrun's.
    parser.set_defaults(num_machines=1, machine_rank=0, dist_url="auto")
    return parser


def run(args: argparse.Namespace) -> int:
    from ocr_panoptic.engine import launch
    from ocr_panoptic.engine.trained_model import options_of_run

    args.opts = options_of_run(args.config_file, args.weights) + args.opts
    return launch(predict_here, args) or 0


def predict_here(args: argparse.Namespace, cfg: "CfgNode | None" = None) -> int:
    """Predict as one of the processes, see :func:`.launch`; returns the exit status."""
    from ocr_panoptic.engine import complete_config
    from ocr_panoptic.engine.agreement import stop_together
    from ocr_panoptic.engine.config_files import load_arguments
    from ocr_panoptic.engine.inputs import find_inputs
    from ocr_panoptic.engine.memory import Limit, largest_image
    from ocr_panoptic.workbench.predicting.run import Options, predict_all

    with stop_together():
        cfg = cfg or load_arguments(args)
        complete_config(cfg)
        limit = largest_image(cfg)
        if args.max_pixels is not None:
            limit = Limit(args.max_pixels, f"--max-pixels is {args.max_pixels}")
        if args.whole_regions:
            limit = limit._replace(pixels=0)
        inputs = find_inputs(args.input, args.output, limit.pixels)
    options = Options(limit, args.labels, args.overlays, args.whole_regions, args.eval)
    missing = predict_all(cfg, inputs, args.output, options)
    return 1 if missing else 0
