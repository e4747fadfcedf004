"""
Run a trained model on an image, the images of a folder or a list, or the frames of a video.

The command writes panoptic PNGs (if the model is panoptic), label PNGs, confidence PNGs, and JSON
files in COCO's formats; with --overlays, it also writes pictures of the segments.
docs/prediction.md describes the files.

    ocr-panoptic predict [--config-file RUN] [--weights FILE] --input FOLDER|LIST|IMAGE|VIDEO \\
        --output FOLDER [--overlays] [--num-gpus N] [KEY VALUE ...]

If the command was stopped, repeat it to continue. The exit status is 1 if an image has no results.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import CommandParser, check_model_is_named, path, positive

if TYPE_CHECKING:
    from ocr_panoptic.predict.sources import Inputs
    from ocr_panoptic.predict.trained_model import TrainedModel

LABELS = ("train", "dataset")


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument(
        "--input", required=True, help="image, video, folder of images, or list of images (.txt)"
    )
    parser.add_argument("--output", required=True, type=path, help="folder for the results")
    parser.add_argument(
        "--labels",
        choices=LABELS,
        default=LABELS[0],
        help="values in label PNGs: class numbers from 0 (train), or the data set's own (dataset)",
    )
    parser.add_argument("--overlays", action="store_true", help="also save images with segments")
    parser.add_argument("--num-gpus", type=positive, default=1, help="processes, one per GPU")
    parser.add_model()
    return parser


def run(args: argparse.Namespace) -> int:
    check_model_is_named(args)
    from ocr_panoptic.engine import launch
    from ocr_panoptic.formats.files import check_output_folder
    from ocr_panoptic.predict.sources import find_inputs
    from ocr_panoptic.predict.trained_model import trained_model

    inputs = find_inputs(args.input, args.output)
    check_output_folder(args.output, "--output", "Name a folder that you can write to.")
    model = trained_model(args.config_file, args.weights, args.opts)
    words = model, inputs, args.output, args.labels, args.overlays
    settings = {"cfg": model.cfg, "imports": args.imports}
    return launch(predict_here, args.num_gpus, args=words, **settings) or 0


def predict_here(
    model: "TrainedModel", inputs: "Inputs", output: Path, labels: str, overlays: bool
) -> int:
    """Run the model on images in one of the command's processes; return the exit status."""
    from ocr_panoptic.workbench.predicting.run import predict_all

    return 1 if predict_all(model, inputs, output, labels, overlays) else 0
