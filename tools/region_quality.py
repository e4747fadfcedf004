#!/usr/bin/env python
"""
Measure the soft object regions of a trained model on DATASETS.TEST[0]: IoU of the coarse and of the
refined prediction, the share of a region's weight on pixels of its class, and the relation of the
pixels to the region of their class. Prints a table, writes it to
OUTPUT_DIR/inference/<data set>/region_quality.json.

    python tools/region_quality.py --config-file CONFIG \\
        MODEL.WEIGHTS OUTPUT_DIR/model_final.pth [KEY VALUE ...]
"""

import argparse

from tabulate import tabulate

from ocr_panoptic.analysis.region_measurement import measure_regions
from ocr_panoptic.engine import complete_config, load_config, run_program
from ocr_panoptic.evaluation import RegionQuality
from ocr_panoptic.run_folder import evaluation_folder, write_region_quality


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config-file", required=True, help="the config of the run")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="config keys and values")
    args = parser.parse_args(argv)
    cfg = load_config(args.config_file, args.opts)
    complete_config(cfg)
    rows, run = measure_regions(cfg)
    table = [[name, *row.values()] for name, row in rows.items()]
    header = ["class", *RegionQuality.COLUMNS]
    print(tabulate(table, headers=header, floatfmt=".1f", tablefmt="github"))
    folder = evaluation_folder(cfg.OUTPUT_DIR, cfg.DATASETS.TEST[0])
    print(f"Wrote {write_region_quality(rows, folder, run)}")


if __name__ == "__main__":
    run_program(main)
