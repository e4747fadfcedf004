"""
Write a self-contained HTML page about a run that was trained and evaluated.

The page shows metrics, pictures of a few images, the worst images, a table of classes, and loss
curves.

    ocr-panoptic report [--config-file RUN] [--weights FILE] [--output PAGE] [--num-images N] \\
        [--num-ranked N] [KEY VALUE ...]
"""

import argparse
from pathlib import Path

from .arguments import CommandParser, check_model_is_named, path, positive


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("--output", type=path, help="default: OUTPUT_DIR/index.html")
    parser.add_argument("--num-images", type=positive, default=6, help="images to show (default 6)")
    parser.add_argument(
        "--num-ranked", type=int, default=5, help="worst images to show (default 5)"
    )
    parser.add_model()
    return parser


def run(args: argparse.Namespace) -> None:
    check_model_is_named(args)
    from ocr_panoptic.formats.files import write_text
    from ocr_panoptic.predict.trained_model import trained_model
    from ocr_panoptic.workbench.looking.run_report import build_report

    model = trained_model(args.config_file, args.weights, args.opts, needs_data=True)
    page = build_report(model, args.config_file, args.num_images, max(0, args.num_ranked))
    output = args.output or Path(model.cfg.OUTPUT_DIR) / "index.html"
    write_text(output, page)
    print(f"Wrote the report {output} ({output.stat().st_size / 1e6:.1f} MB)")
