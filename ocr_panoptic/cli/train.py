"""
Train a model, or evaluate it with --eval-only. Detectron2's flags and torchrun also work.

Without a config, the training is planned from the facts of the data (`ocr-panoptic plan --help`).

    ocr-panoptic train --data FILE ... [--minutes N] [KEY VALUE ...]
    ocr-panoptic train --config-file CONFIG [--data FILE ...] [--num-gpus N] [--resume [auto]]
        [KEY VALUE ...]
    torchrun --nproc-per-node N -m ocr_panoptic train --config-file CONFIG ...
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import as_list, path_argument

from .arguments import CommandParser, RunOptions
from .plan import plan_without_config


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__, RunOptions)
    parser.add_run()
    parser.add_minutes()
    return parser


def run(options: RunOptions) -> None:
    from . import train_net

    plan_without_config(options)
    train_net.main(options)


def train(
    config: str | PathLike | None = None,
    *,
    data: str | PathLike | Sequence[str | PathLike] = (),
    minutes: float | None = None,
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
        config: config file, or name of a packaged config; None plans one from the data.
        data: data files (datasets/README.md).
        minutes: length of a planned training.
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
    config_file = "" if config is None else path_argument("config", config)
    options = options_of_call(config_file, data, output, num_gpus, keys, resume)
    options.overwrite, options.deterministic = overwrite, deterministic
    options.minutes = minutes
    plan_without_config(options)
    from . import train_net

    return train_net.main(options) or {}


def options_of_call(
    config: str | PathLike,
    data: str | PathLike | Sequence[str | PathLike],
    output: str | PathLike | None,
    num_gpus: int,
    keys: Mapping[str, Any],
    resume: bool | Literal["auto"] = False,
) -> RunOptions:
    """Return the options that the arguments of a Python function stand for."""
    from ocr_panoptic.config.files import quoted

    if not isinstance(num_gpus, int) or num_gpus < 1:
        raise UserError(f"num_gpus is {num_gpus!r}; expected an integer of at least 1.")
    if resume not in (True, False, "auto"):
        raise UserError(f'resume is {resume!r}; expected True, False or "auto".')
    if output is not None:
        keys = {"OUTPUT_DIR": path_argument("output", output), **keys}
    return RunOptions(
        config_file=path_argument("config", config) if str(config) else "",
        data=list(map(str, as_list(data))),
        opts=quoted(keys),
        resume=resume,
        num_gpus=num_gpus,
    )
