#!/usr/bin/env python
"""Train the systems of a study with several seeds under equal settings, and compare them.

What is finished is not trained again, and an interrupted run is resumed: repeat the command. The
tables, the curves and the records of all runs are made from the run folders. Runs that another
machine has finished join by --records; their times and memory are their own. --fields adds a figure
of the gains over the receptive field.
"""

import argparse
import sys
from pathlib import Path

from ocr_panoptic.analysis.field_measurement import read_fields
from ocr_panoptic.analysis.study import add_records, read_records, run_study
from ocr_panoptic.analysis.study_file import read_study
from ocr_panoptic.analysis.study_output import study_tables, write_study
from ocr_panoptic.engine import run_program

TRAIN_NET = str(Path(__file__).resolve().parents[1] / "train_net.py")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="YAML file, see studies/")
    parser.add_argument("--output", type=Path, help="folder of the runs, by default output/STUDY")
    parser.add_argument(
        "--records",
        type=Path,
        nargs="+",
        default=[],
        help="results.json files with runs of this study that need no training",
    )
    parser.add_argument(
        "--fields",
        type=Path,
        help="JSON of tools/receptive_field.py; the places of the study are its features",
    )
    parser.add_argument(
        "--baseline",
        help="system to compare with instead: print the tables of finished runs, and no more",
    )
    parser.add_argument("--report-only", action="store_true", help="train nothing")
    args = parser.parse_args(argv)
    output = args.output or Path("output") / args.study.stem
    study = read_study(args.study, args.baseline)
    places = {system.place for system in study.systems.values()}
    if args.fields and places == {""}:
        parser.error(f"--fields: {args.study} has no places (at), each at features of its own")
    fields = read_fields(args.fields, places) if args.fields else {}
    for file in args.records:
        print(f"{file}: {add_records(study, output, file)} runs added")
    if not args.report_only and not args.baseline:
        run_study(study, [sys.executable, TRAIN_NET], output)
    records = read_records(study, output)
    if not records:
        sys.exit(f"{output}: no finished run of {args.study}")
    if args.baseline:
        print(study_tables(study, records)[1])
    else:
        print(write_study(study, records, output, fields))
        print(f"Wrote tables.md, results.json and figures to {output}")


if __name__ == "__main__":
    run_program(main)
