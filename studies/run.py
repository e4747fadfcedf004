"""
Train the systems (model configurations) of a study with several seeds, and compare them.

    python -m studies.run studies/STUDY.yaml

If the command is repeated, finished runs are not trained again, and an interrupted run is resumed.
Tables, curves and results.json are made from the run folders. --records adds runs that another
machine has finished, with the times and memory measured there. --fields adds a figure that plots
the gains over the baseline against the receptive field.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ocr_panoptic.formats.files import write_json, write_text
from ocr_panoptic.program import run_program
from ocr_panoptic.workbench.comparing.study import read_runs, run_study

from .fields.measurement import read_fields
from .figures import gain_figure, placed_curves
from .records import add_records
from .study_file import PlacedStudy, read_study
from .study_tables import study_report, summarise

TRAIN = str(Path(__file__).with_name("train.py"))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m studies.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", type=Path, help="YAML file")
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
        help="JSON of studies.fields; the places of the study are its features",
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
    fields = read_fields(args.fields, places) if args.fields else {}
    for file in args.records:
        print(f"{file}: {add_records(study, output, file)} runs added")
    if not args.report_only and not args.baseline:
        run_study(study, [sys.executable, TRAIN], output)
    runs = read_runs(study, output)
    if not runs:
        sys.exit(f"{output}: no finished run of {args.study}")
    if args.baseline:
        print(study_report(study, summarise(study, runs)))
    else:
        print(write_study(study, runs, output, fields))
        print(f"Wrote tables.md, results.json and figures to {output}")


def write_study(
    study: PlacedStudy, runs: list[dict[str, Any]], output: Path, fields: Mapping[str, Any]
) -> str:
    """
    Write tables.md, results.json, curves.png and, with ``fields``, gains.png; return the tables.

    Args:
        study: study that the runs belong to.
        runs: records of the finished runs.
        output: folder to write into.
        fields: receptive fields from :func:`.read_fields`; if empty, gains.png is not written.
    """
    rows = summarise(study, runs)
    report = study_report(study, rows)
    write_text(output / "tables.md", report)
    write_json(output / "results.json", runs, indent=1)
    figures = {"curves.png": placed_curves(study, runs)}
    # While only the baseline has runs, there are no gains.
    if fields and any(row.gains[study.metrics[0]] for row in rows):
        figures["gains.png"] = gain_figure(study, rows, fields)
    for name, figure in figures.items():
        figure.savefig(output / name, dpi=100)
    return report


if __name__ == "__main__":
    run_program(main)
