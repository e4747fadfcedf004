#!/usr/bin/env python
"""Train the systems of a study with several seeds under equal settings, and compare them.

What is finished is not trained again, and an interrupted run is resumed: repeat the command. The
table, the curves and the records of all runs are made from the run folders. Runs that another
machine has finished join by --records; its times and memory are its own.
"""

import argparse
import sys
from pathlib import Path

from ocr_panoptic.analysis.study import add_records, read_records, run_study, summarise
from ocr_panoptic.analysis.study_file import read_study
from ocr_panoptic.engine import run_program
from ocr_panoptic.files import write_json, write_text
from ocr_panoptic.visualization import study_curves, study_table

TRAIN_NET = Path(__file__).resolve().parents[1] / "train_net.py"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="YAML file, see studies/")
    parser.add_argument("--output", type=Path, help="folder of the runs, by default output/STUDY")
    parser.add_argument(
        "--records", type=Path, help="results.json with runs of this study that need no training"
    )
    parser.add_argument("--report-only", action="store_true", help="train nothing")
    args = parser.parse_args(argv)
    output = args.output or Path("output") / args.study.stem
    study = read_study(args.study)
    if args.records:
        print(f"{args.records}: {add_records(study, output, args.records)} runs added")
    if not args.report_only:
        run_study(study, TRAIN_NET, sys.executable, output)
    records = read_records(study, output)
    if not records:
        sys.exit(f"{output}: no finished run of {args.study}")
    table = study_table(summarise(study, records), study.metrics)
    print(table)
    write_text(output / "table.md", table + "\n")
    write_json(output / "results.json", records, indent=1)
    study_curves(records, study.metrics[0]).savefig(output / "curves.png", dpi=100)
    print(f"Wrote table.md, results.json and curves.png to {output}")


if __name__ == "__main__":
    run_program(main)
