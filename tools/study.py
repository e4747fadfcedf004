#!/usr/bin/env python
"""Train the systems of a study with several seeds under equal settings, and compare them.

What is finished is not trained again, and an interrupted run is resumed: repeat the command. The
table, the curves and the records of all runs are made from the run folders. Runs that another
machine has finished join by --records; its times and memory are its own.
"""

import argparse
import json
import sys
from pathlib import Path

from ocr_panoptic.engine.study import add_records, read_records, read_study, run_study, summarise
from ocr_panoptic.visualization import study_curves, study_table

TRAIN_NET = Path(__file__).resolve().parents[1] / "train_net.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="YAML file, see studies/")
    parser.add_argument("--output", type=Path, help="folder of the runs, by default output/STUDY")
    parser.add_argument(
        "--records", type=Path, help="results.json with runs of this study that need no training"
    )
    parser.add_argument("--report-only", action="store_true", help="train nothing")
    args = parser.parse_args()
    output = args.output or Path("output") / args.study.stem
    try:
        study = read_study(args.study)
        if args.records:
            print(f"{args.records}: {add_records(study, output, args.records)} runs added")
        if not args.report_only:
            run_study(study, TRAIN_NET, sys.executable, output)
    except (OSError, ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    records = read_records(study, output)
    if not records:
        print(f"{output}: no finished run of {args.study}", file=sys.stderr)
        return 1
    table = study_table(summarise(study, records), study.metrics)
    print(table)
    (output / "table.md").write_text(table + "\n")
    (output / "results.json").write_text(json.dumps(records, indent=1))
    study_curves(records, study.metrics[0]).savefig(output / "curves.png", dpi=100)
    print(f"Wrote table.md, results.json and curves.png to {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
