#!/usr/bin/env python
"""Write COCO 2017's semantic PNGs (panoptic_stuff_train2017, panoptic_stuff_val2017).

Reads $DETECTRON2_DATASETS/coco, laid out as datasets/README.md shows.
"""

import argparse
import sys

from ocr_panoptic.data import datasets_root, prepare_coco_panoptic


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, help="processes, by default the cores, at most 8")
    args = parser.parse_args()
    try:
        folders = prepare_coco_panoptic(datasets_root(), args.workers)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print("Wrote " + ", ".join(str(folder) for folder in folders))
    return 0


if __name__ == "__main__":
    sys.exit(main())
