"""
Train the systems (model configurations) of a study with several seeds, and compare them.

    python -m studies.run studies/STUDY.yaml

If the command is repeated, finished runs are not trained again, and an interrupted run is resumed.
Tables and results.json are made from the run folders. --records adds runs that another machine has
finished, with the times and memory measured there.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from ocr_panoptic.formats.files import write_json, write_text
from ocr_panoptic.program import run_program
from ocr_panoptic.workbench.comparing.study import read_runs, run_study

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
        "--baseline",
        help="system to compare with instead: print the tables of finished runs, and no more",
    )
    parser.add_argument("--report-only", action="store_true", help="train nothing")
    args = parser.parse_args(argv)
    output = args.output or Path("output") / args.study.stem
    study = read_study(args.study, args.baseline)
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
        print(write_study(study, runs, output))
        print(f"Wrote tables.md and results.json to {output}")


def write_study(study: PlacedStudy, runs: list[dict[str, Any]], output: Path) -> str:
    """
    Write tables.md and results.json, and return the tables.

    Args:
        study: study that the runs belong to.
        runs: records of the finished runs.
        output: folder to write into.
    """
    report = study_report(study, summarise(study, runs))
    write_text(output / "tables.md", report)
    write_json(output / "results.json", runs, indent=1)
    return report


if __name__ == "__main__":
    run_program(main)
