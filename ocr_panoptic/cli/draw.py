"""
Draw what a trained model predicts for images, a video, or a camera.

    ocr-panoptic draw --config-file RUN --input IMAGES ... --output FOLDER [--weights FILE]
        [--opts KEY VALUE ...]
    ocr-panoptic draw --config-file RUN --video-input FILE --output FILE.mp4 ...
    ocr-panoptic draw --config-file RUN --webcam ...
"""

import argparse
import logging
from functools import partial
from pathlib import Path

from .arguments import CommandParser


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__, _fault)
    parser.add_argument(
        "--config-file", required=True, metavar="RUN", help="folder of a run, or a config"
    )
    parser.add_argument(
        "--weights", help="the trained model (default: of a folder its last checkpoint)"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input", nargs="+", help="images, folders with all below, or quoted patterns"
    )
    source.add_argument("--video-input", type=Path, help="a video file")
    source.add_argument("--webcam", action="store_true", help="show the first camera")
    parser.add_argument("--output", help="a file or folder; without it a window opens")
    parser.add_argument(
        "--confidence-threshold", type=score, default=0.5, help="least score of an instance, 0..1"
    )
    parser.add_argument("--opts", nargs=argparse.REMAINDER, default=[], help="KEY VALUE ...")
    return parser


def _fault(args: argparse.Namespace) -> str:
    together = args.webcam and args.output
    return "--webcam shows a window; it takes no --output" if together else ""


def score(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:  # NaN is not, too
        raise argparse.ArgumentTypeError(f"{text} is no number from 0 to 1")
    return value


def run(args: argparse.Namespace) -> int:
    """Returns: the exit status, 1 where an image could not be read."""
    from ocr_panoptic.engine import build_trained_model
    from ocr_panoptic.engine.segfix import refined_by_segfix
    from ocr_panoptic.engine.single_image import class_metadata, predict
    from ocr_panoptic.engine.trained_model import trained_config
    from ocr_panoptic.formats.files import printable
    from ocr_panoptic.formats.image_sources import find_images, output_paths
    from ocr_panoptic.formats.video import VideoReader, video_output
    from ocr_panoptic.workbench.predicting.drawing import draw_images, draw_video

    logger = logging.getLogger("ocr_panoptic")
    # What the user got wrong shows before a model is built.
    if args.input:
        images = find_images(args.input, args.output)
        outputs = output_paths(images, args.output) if args.output else None
    else:
        reader = VideoReader(0 if args.webcam else args.video_input)
        output = video_output(args.video_input, args.output) if args.output else None

    threshold = str(args.confidence_threshold)
    thresholds = [
        *("MODEL.RETINANET.SCORE_THRESH_TEST", threshold),
        *("MODEL.ROI_HEADS.SCORE_THRESH_TEST", threshold),
        *("MODEL.PANOPTIC_FPN.COMBINE.INSTANCES_CONFIDENCE_THRESH", threshold),
        *("MODEL.PANOPTIC_FPN.COMBINE.CLASS_CONFIDENCE", "[]"),
    ]
    cfg = trained_config(args.config_file, args.weights, args.opts + thresholds)
    metadata = class_metadata(cfg)
    model = partial(predict, cfg, refined_by_segfix(cfg, build_trained_model(cfg)))

    if not args.input:
        count = draw_video(reader, output, model, metadata)
        logger.info("%d frames drawn%s", count, f" to {output}" if output else "")
        return 0
    unreadable = draw_images(list(images), outputs, model, metadata, cfg.INPUT.CHANNELS)
    if outputs:
        done = len(images) - len(unreadable)
        logger.info("%d pictures drawn in %s", done, printable(args.output))
    if unreadable:
        logger.error(
            "%d of %d inputs could not be read: %s",
            len(unreadable),
            len(images),
            ", ".join(map(printable, unreadable)),
        )
    return 1 if unreadable else 0
