#!/usr/bin/env python
"""
Write one self-contained HTML page about a run that was trained and evaluated: metrics, pictures of
a few images, the worst and the best ones, classes, confidence, loss curves.

    python tools/make_report.py --config-file CONFIG [--output PAGE] [--num-images N] \\
        [--num-ranked N] MODEL.WEIGHTS OUTPUT_DIR/model_final.pth [KEY VALUE ...]
"""

import argparse
from pathlib import Path

from ocr_panoptic.analysis.run_report import NUM_RANKED, build_report
from ocr_panoptic.engine import complete_config, load_config, run_program
from ocr_panoptic.files import write_text


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config-file", required=True, help="the config of the run")
    parser.add_argument("--output", type=Path, help="default: OUTPUT_DIR/index.html")
    parser.add_argument("--num-images", type=int, default=6, help="images to show (default 6)")
    parser.add_argument(
        "--num-ranked",
        type=int,
        default=NUM_RANKED,
        help=f"worst images to show, and best ones (default {NUM_RANKED})",
    )
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="config keys and values")
    args = parser.parse_args(argv)

    cfg = load_config(args.config_file, args.opts)
    complete_config(cfg)
    page = build_report(cfg, args.config_file, args.num_images, args.num_ranked)
    output = args.output or Path(cfg.OUTPUT_DIR) / "index.html"
    write_text(output, page)
    print(f"The report is {output} ({output.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    run_program(main)
