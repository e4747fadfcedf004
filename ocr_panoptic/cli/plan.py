"""
Plan a training from the facts of your data: write a config, and say why it has its values.

    ocr-panoptic plan --data FILE ... [--minutes N] [--output my.yaml] [KEY VALUE ...]

With --minutes, some training steps are measured, and the training is planned to end in that time.
KEY VALUE ... are values that you have decided. Train with the plan: ocr-panoptic train
--config-file my.yaml. `ocr-panoptic train --data FILE` without a config plans and trains at once.
"""

import argparse
import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_panoptic.errors import UserError

from .arguments import CommandParser, RunOptions, path

if TYPE_CHECKING:
    from ocr_panoptic.workbench.planning.plan import Plan

PLAN = "plan.yaml"  # file in a run's folder


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_data()
    parser.add_minutes()
    parser.add_argument("--output", type=path, help="config file to write")
    parser.add_opts()
    return parser


def run(args: argparse.Namespace) -> None:
    from ocr_panoptic.config.files import overrides_of

    made = _planned(args.data, args.minutes, overrides_of(args.opts))
    print(made)
    if args.output:
        made.write(args.output)
        print(f"\nWrote {args.output}. To train: ocr-panoptic train --config-file {args.output}")


def plan(
    data: str | PathLike | Sequence[str | PathLike],
    *,
    minutes: float | None = None,
    output: str | PathLike | None = None,
    **keys: Any,
) -> "Plan":
    """
    Plan a training from the facts of the data, as ``ocr-panoptic plan`` does.

    Args:
        data: data files (datasets/README.md).
        minutes: length of the training with its evaluations; None for the usual passes.
        output: config file to write; None writes nothing.
        **keys: values of config keys that you have decided.

    Returns:
        a plan that ``print`` shows as a table; ``decisions`` has each value with its reason, and
        ``yaml()`` is the config
    """
    from ocr_panoptic.config.files import quoted
    from ocr_panoptic.formats.files import as_list, path_argument

    file = None if output is None else Path(path_argument("output", output)).expanduser()
    made = _planned(list(map(str, as_list(data))), minutes, quoted(keys))
    if file:
        made.write(file)
    return made


def plan_without_config(options: RunOptions) -> None:
    """
    If a training names data but no config, plan it, and let the options name the plan.

    The plan is printed and written to plan.yaml in OUTPUT_DIR. A training that continues from a
    checkpoint takes the plan of its first start.
    """
    named = options.config_file or "MODEL.META_ARCHITECTURE" in options.opts
    if named or options.eval_only or not options.data:
        if options.minutes is not None:
            raise UserError(
                "--minutes plans a training run, so it needs --data and cannot be combined with "
                "--config-file, MODEL.META_ARCHITECTURE or --eval-only. To shorten training with "
                "a config, set SOLVER.MAX_ITER instead."
            )
        return
    from ocr_panoptic.checkpoint.checkpointer import last_checkpoint
    from ocr_panoptic.config.files import load_config, overrides_of
    from ocr_panoptic.data.data_file import read_data_files
    from ocr_panoptic.engine.setup import check_is_new

    if int(os.environ.get("WORLD_SIZE", 1)) > 1 or options.num_machines > 1:
        raise UserError(
            "A training on several machines or with torchrun needs a finished plan. Plan first: "
            "ocr-panoptic plan --data FILE --output my.yaml. Then train with --config-file my.yaml."
        )
    overrides = overrides_of(options.opts)
    folder = f"./output/{read_data_files(options.data)[0].name}"
    if "OUTPUT_DIR" in overrides:
        folder = load_config("", {"OUTPUT_DIR": overrides["OUTPUT_DIR"]}).OUTPUT_DIR
    file = Path(folder, PLAN)
    options.config_file = str(file)
    continues = options.resume is True or (options.resume and last_checkpoint(folder))
    if continues and file.is_file():
        print(f"Continuing with the existing plan {file} (a new --minutes has no effect).")
        return
    if not (options.resume or options.overwrite):
        check_is_new(folder)
    made = _planned(options.data, options.minutes, overrides)
    print(f"{made}\n", flush=True)
    made.write(file)


def _planned(data: Sequence[str], minutes: float | None, overrides: dict[str, Any]) -> "Plan":
    if not data:
        raise UserError("There is nothing to plan for. Name data files with --data.")
    if minutes is not None and not 0 < minutes < 10**6:
        raise UserError(f"--minutes is {minutes}; expected a number above 0 and below 1,000,000.")
    from ocr_panoptic.workbench.planning.plan import make_plan

    return make_plan(data, minutes, overrides)
