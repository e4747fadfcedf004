"""
Measure the soft object regions of a trained model on DATASETS.TEST[0].

For each class, print the IoU of the coarse and the refined prediction, the share of the region's
weight that lies on pixels of the class, and the mean pixel-region relation (attention weight)
between these pixels and the region. The table is also written to
OUTPUT_DIR/inference/<data set>/region_quality.json.

    ocr-panoptic regions [--config-file RUN] [--weights FILE] [KEY VALUE ...]
"""

import argparse

from .arguments import CommandParser, check_model_is_named


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_model()
    return parser


def run(args: argparse.Namespace) -> None:
    check_model_is_named(args)
    from tabulate import tabulate

    from ocr_panoptic.evaluation.stored import evaluation_folder, write_results
    from ocr_panoptic.predict.trained_model import trained_model
    from ocr_panoptic.workbench.looking.region_quality import RegionQuality, measure_regions

    model = trained_model(args.config_file, args.weights, args.opts, needs_data=True)
    cfg, (rows, run) = model.cfg, measure_regions(model)
    table = [[name, *row.values()] for name, row in rows.items()]
    header = ["class", *RegionQuality.COLUMNS]
    print(tabulate(table, headers=header, floatfmt=".1f", tablefmt="github"))
    file = evaluation_folder(cfg.OUTPUT_DIR, cfg.DATASETS.TEST[0]) / "region_quality.json"
    write_results(file, {"run": run, "classes": rows})
    print(f"Wrote {file}")
