#!/usr/bin/env python
"""Write the label PNGs of PASCAL-Context or COCO-Stuff 10k from its MATLAB files.

Reads $DETECTRON2_DATASETS, laid out as datasets/README.md shows. Needs SciPy.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", choices=["pascal_context", "coco_stuff_10k"])
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    return parser


def main(argv: list[str] | None = None) -> None:
    args = argument_parser().parse_args(argv)
    from ocr_panoptic.data.data_file import datasets_root
    from ocr_panoptic.data.faults import faults_listed
    from ocr_panoptic.data.published.mat_labels import MAT_RELEASES, prepare_mat_release

    with faults_listed(datasets_root() / f"{args.release}_faults.txt"):
        folders = prepare_mat_release(MAT_RELEASES[args.release], datasets_root(), args.workers)
    print("Wrote " + ", ".join(map(str, folders)))


if __name__ == "__main__":
    argument_parser().parse_args()  # --help, before what takes seconds to import
    from ocr_panoptic.engine import run_program

    run_program(main)
