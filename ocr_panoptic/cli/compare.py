"""
Compare the head of a config with standard heads on your data.

Train the config unchanged ("ours") and with three standard heads (plain, PPM, published OCR), each
with several seeds. Print which head is better, with confidence intervals. Finished runs are kept:
repeat the command after a stop, or with more seeds. Several processes can run the command at the
same time.

    ocr-panoptic compare --config-file CONFIG [--data FILE ...] --output FOLDER [--seeds N]
        [KEY VALUE ...]
"""

import argparse
import sys
from pathlib import Path

from ocr_panoptic.errors import MissingFileError

from .arguments import CommandParser, path, positive

TRAIN = [sys.executable, "-m", "ocr_panoptic", "train"]


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_argument("--config-file", required=True, metavar="CONFIG", help="your head's config")
    parser.add_data()
    parser.add_argument("--output", type=path, required=True, help="folder for runs and tables")
    parser.add_argument(
        "--seeds", type=positive, default=3, help="number of runs of each head (default 3)"
    )
    only = "write tables of the finished runs, without training"
    parser.add_argument("--report-only", action="store_true", help=only)
    parser.add_opts()
    return parser


def run(args: argparse.Namespace) -> None:
    from ocr_panoptic.config.files import find_config, overrides_of
    from ocr_panoptic.data.data_file import data_options, read_data_files
    from ocr_panoptic.formats.files import write_json, write_text
    from ocr_panoptic.workbench.comparing.compare import comparison, comparison_report, verdict
    from ocr_panoptic.workbench.comparing.study import read_runs, run_study

    overrides = {**data_options(read_data_files(args.data)), **overrides_of(args.opts)}
    study = comparison(Path(find_config(args.config_file)), overrides, range(args.seeds))
    if not args.report_only:
        imports = [word for name in args.imports for word in ("--import", name)]
        run_study(study, [*TRAIN, *imports], args.output)
    runs = read_runs(study, args.output)
    if not runs:
        raise MissingFileError(
            f"{args.output}: no run of this comparison is finished. Check --output, or omit "
            "--report-only to train the heads."
        )
    report = f"{comparison_report(study, runs)}\n{verdict(study, runs)}\n"
    write_text(args.output / "tables.md", report)
    write_json(args.output / "results.json", runs, indent=1)
    print(report, end="")
