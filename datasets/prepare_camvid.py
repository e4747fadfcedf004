#!/usr/bin/env python
"""Prepare CamVid as a semantic (camvid_*) and as a panoptic data set (camvid_panoptic_*)."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

from ocr_panoptic.data import datasets_root, faults_listed, prepare_camvid
from ocr_panoptic.engine import run_program


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder with train, val and perhaps test")
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    args = parser.parse_args(argv)
    with faults_listed(datasets_root() / "camvid_faults.txt"):
        files = prepare_camvid(args.source, datasets_root(), args.workers)
    print("Wrote " + ", ".join(map(str, files)))


if __name__ == "__main__":
    run_program(main)
