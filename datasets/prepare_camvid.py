#!/usr/bin/env python
"""Prepare CamVid as a semantic (camvid_*) and as a panoptic data set (camvid_panoptic_*)."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder with train, val and perhaps test")
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    return parser


def main(argv: list[str] | None = None) -> None:
    args = argument_parser().parse_args(argv)
    from ocr_panoptic.data.data_file import datasets_root
    from ocr_panoptic.data.faults import faults_listed
    from ocr_panoptic.data.published.camvid import prepare_camvid

    with faults_listed(datasets_root() / "camvid_faults.txt"):
        files = prepare_camvid(args.source, datasets_root(), args.workers)
    print("Wrote " + ", ".join(map(str, files)))


if __name__ == "__main__":
    argument_parser().parse_args()  # --help, before what takes seconds to import
    from ocr_panoptic.engine import run_program

    run_program(main)
