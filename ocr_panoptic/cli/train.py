"""
Train a model, or evaluate it with --eval-only. Detectron2's flags and torchrun also work.

    ocr-panoptic train --config-file CONFIG [--data FILE ...] [--num-gpus N] [--resume [auto]]
        [KEY VALUE ...]
    torchrun --nproc-per-node N -m ocr_panoptic train --config-file CONFIG ...
"""

import argparse
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import as_list, path_argument

from .arguments import CommandParser, check_arguments, check_weights


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_run()
    return parser


def run(args: argparse.Namespace) -> None:
    cfg = check_arguments(args)
    if not (args.eval_only or args.resume):
        check_weights(cfg.MODEL.WEIGHTS)
    launched(args)


def launched(args: argparse.Namespace) -> dict[str, dict[str, float]] | None:
    """Train or evaluate in all processes; return the metrics (None if only child processes ran)."""
    from ocr_panoptic.engine import launch

    return launch(run_here, args)


def run_here(args: argparse.Namespace) -> dict[str, dict[str, float]] | None:
    """Train or evaluate in one of the run's processes; return the metrics in the main process."""
    from ocr_panoptic.data.data_file import cache_folder
    from ocr_panoptic.data.faults import faults_listed
    from ocr_panoptic.engine import Trainer, setup
    from ocr_panoptic.engine.setup import locked_folder
    from ocr_panoptic.workbench.checking.run_check import check_start

    with faults_listed(cache_folder() / "faults.txt"):
        cfg, written = setup(args)
        check_start(cfg, args.resume, training=not args.eval_only)
    if args.eval_only:
        return Trainer.evaluate(cfg)
    with locked_folder(cfg.OUTPUT_DIR):
        trainer = Trainer(cfg, written)
        trainer.resume_or_load(resume=args.resume)
        return trainer.train()


def train(
    config: str | PathLike,
    *,
    data: str | PathLike | Sequence[str | PathLike] = (),
    output: str | PathLike | None = None,
    resume: bool | Literal["auto"] = False,
    overwrite: bool = False,
    num_gpus: int = 1,
    deterministic: bool = False,
    **keys: Any,
) -> dict[str, dict[str, float]]:
    """
    Train a model, as ``ocr-panoptic train`` does.

    Like the command, this function prints messages, writes files and a log, and seeds the random
    generators.

    Args:
        config: config file, or name of a packaged config.
        data: data files (datasets/README.md).
        output: folder of the run; by default the config's OUTPUT_DIR.
        resume: whether to continue from the last checkpoint; with "auto", a new run starts if
            there is no checkpoint.
        overwrite: whether to start anew in a folder that has another run's checkpoints.
        num_gpus: number of processes on this machine. If there are several, they import the
            caller's program, which then needs ``if __name__ == "__main__":``.
        deterministic: whether runs with an equal SEED give equal results on this machine.
        **keys: overrides of config keys, such as ``**{"SOLVER.MAX_ITER": 1000}``.

    Returns:
        metrics of the last evaluation, such as {"panoptic_seg": {"PQ": 41.5}}; for several data
        sets, a dict with such metrics for each data set; {} if there was no evaluation, or if
        ``num_gpus`` is above 1

    Raises:
        FileNotFoundError, ValueError: an argument is wrong. The command prints the same message.
        SystemExit: Ctrl-C or SIGTERM ended the training, after a checkpoint was saved.
    """
    config = path_argument("config", config)
    args = function_arguments(argument_parser(), config, data, output, num_gpus, keys, resume)
    args.overwrite, args.deterministic = overwrite, deterministic
    return launched(args) or {}


def function_arguments(
    parser: argparse.ArgumentParser,
    config: str | PathLike,
    data: str | PathLike | Sequence[str | PathLike],
    output: str | PathLike | None,
    num_gpus: int,
    keys: Mapping[str, Any],
    resume: bool | Literal["auto"] = False,
) -> argparse.Namespace:
    """Return a command's parsed arguments, made from the arguments of its Python function."""
    from ocr_panoptic.config.files import options_of

    if not isinstance(num_gpus, int) or num_gpus < 1:
        raise UserError(f"num_gpus is {num_gpus!r}; expected a number of at least 1.")
    if resume not in (True, False, "auto"):
        raise UserError(f'resume is {resume!r}; expected True, False or "auto".')
    args = parser.parse_args([])
    args.config_file = path_argument("config", config) if str(config) else ""
    args.data = list(map(str, as_list(data)))
    if output is not None:
        keys = {"OUTPUT_DIR": path_argument("output", output), **keys}
    args.opts, args.num_gpus, args.resume = options_of(keys), num_gpus, resume
    return args
