#!/usr/bin/env python
"""Prepare CamVid as a semantic (camvid_*) and as a panoptic data set (camvid_panoptic_*)."""

import argparse
import sys
from pathlib import Path

from ocr_panoptic.data import datasets_root, prepare_camvid


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder with train, val and perhaps test")
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    args = parser.parse_args()
    try:
        manifests = prepare_camvid(args.source, datasets_root(), args.workers)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print("Wrote " + ", ".join(str(manifest) for manifest in manifests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
