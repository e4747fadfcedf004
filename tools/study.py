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
from ocr_panoptic.analysis.study_summary import class_metric_names, summarise
from ocr_panoptic.engine import run_program
from ocr_panoptic.files import write_json, write_text
from ocr_panoptic.visualization import gain_figure, study_curves, study_report

TRAIN_NET = Path(__file__).resolve().parents[1] / "train_net.py"


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
        run_study(study, TRAIN_NET, sys.executable, output)
    records = read_records(study, output)
    if not records:
        sys.exit(f"{output}: no finished run of {args.study}")
    classes = class_metric_names(study, records)
    rows = summarise(study, records, [*study.metrics, *classes.values()])
    report = study_report(rows, study.metrics, classes)
    print(report)
    if args.baseline:
        return
    write_text(output / "tables.md", report)
    write_json(output / "results.json", records, indent=1)
    figures = {"curves.png": study_curves(rows, records, study.metrics[0])}
    # At first there are runs of the baseline alone.
    if fields and any(row[f"{study.metrics[0]} - baseline"] for row in rows):
        figures["gains.png"] = gain_figure(rows, study.metrics[0], fields)
    for name, figure in figures.items():
        figure.savefig(output / name, dpi=100)
    print(f"Wrote tables.md, results.json, {' and '.join(figures)} to {output}")


if __name__ == "__main__":
    run_program(main)
