#!/usr/bin/env python
"""
Write one self-contained HTML page about a run that was trained and evaluated: metrics, pictures of
a few images, classes, loss curves.

    python tools/make_report.py --config-file CONFIG [--output PAGE] [--num-images N] \\
        MODEL.WEIGHTS OUTPUT_DIR/model_final.pth [KEY VALUE ...]
"""

import argparse
from pathlib import Path

from ocr_panoptic.analysis.run_report import build_report
from ocr_panoptic.engine import complete_config, load_config, run_program
from ocr_panoptic.files import write_text


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config-file", required=True, help="the config of the run")
    parser.add_argument("--output", type=Path, help="default: OUTPUT_DIR/index.html")
    parser.add_argument("--num-images", type=int, default=6, help="images to show (default 6)")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="config keys and values")
    args = parser.parse_args(argv)

    cfg = load_config(args.config_file, args.opts)
    complete_config(cfg)
    page = build_report(cfg, args.config_file, args.num_images)
    output = args.output or Path(cfg.OUTPUT_DIR) / "index.html"
    write_text(output, page)
    print(f"The report is {output} ({output.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    run_program(main)
