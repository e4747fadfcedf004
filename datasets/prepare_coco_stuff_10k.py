#!/usr/bin/env python
"""Write the label PNGs of COCO-Stuff 10k from its MATLAB files.

Reads $DETECTRON2_DATASETS, laid out as datasets/README.md shows. Needs SciPy.
"""

import argparse
import sys

from ocr_panoptic.data import COCO_STUFF_10K, datasets_root, prepare_mat_release


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    args = parser.parse_args()
    try:
        folders = prepare_mat_release(COCO_STUFF_10K, datasets_root(), args.workers)
    except (ImportError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print("Wrote " + ", ".join(str(folder) for folder in folders))
    return 0


if __name__ == "__main__":
    sys.exit(main())
