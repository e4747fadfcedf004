#!/usr/bin/env python
"""Prepare Cityscapes or ADE20K for Panoptic-FPN, from the panoptic JSON and PNGs of their tools.

Reads $DETECTRON2_DATASETS, laid out as datasets/README.md shows.
"""

import argparse

from ocr_panoptic.data import (
    PANOPTIC_RELEASES,
    datasets_root,
    faults_listed,
    prepare_panoptic_release,
)
from ocr_panoptic.engine import run_program


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", choices=PANOPTIC_RELEASES)
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    args = parser.parse_args(argv)
    release, root = PANOPTIC_RELEASES[args.release], datasets_root()
    with faults_listed(root / f"{release.name}_faults.txt"):
        manifest = prepare_panoptic_release(release, root, args.workers)
    print(f"Wrote {manifest}")


if __name__ == "__main__":
    run_program(main)
