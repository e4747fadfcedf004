#!/usr/bin/env python
"""Write COCO 2017's semantic PNGs (panoptic_stuff_train2017, panoptic_stuff_val2017).

Reads $DETECTRON2_DATASETS/coco, laid out as datasets/README.md shows.
"""

import argparse

from ocr_panoptic.data import datasets_root, faults_listed, prepare_coco_panoptic
from ocr_panoptic.engine import run_program


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    args = parser.parse_args(argv)
    with faults_listed(datasets_root() / "coco_faults.txt"):
        folders = prepare_coco_panoptic(datasets_root(), args.workers)
    print("Wrote " + ", ".join(map(str, folders)))


if __name__ == "__main__":
    run_program(main)
