"""
Train a model, or evaluate one with --eval-only. Detectron2's flags, and torchrun, work.

    ocr-panoptic train --config-file CONFIG [--data FILE ...] [--num-gpus N] [--resume [auto]]
        [KEY VALUE ...]
    torchrun --nproc-per-node N -m ocr_panoptic train --config-file CONFIG ...
"""

import argparse
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from ocr_panoptic.formats.files import as_list

from .arguments import TrainingArguments
from .door import check_arguments, check_weights


def argument_parser() -> TrainingArguments:
    return TrainingArguments(__doc__)


def run(args: argparse.Namespace) -> None:
    cfg = check_arguments(args)
    if not (args.eval_only or args.resume):
        check_weights(cfg.MODEL.WEIGHTS)
    launched(args)


def launched(args: argparse.Namespace) -> dict[str, dict[str, float]] | None:
    """Return the metrics of :func:`run_here` in the processes that the arguments ask for, where
    that is this one."""
    from ocr_panoptic.engine import launch

    return launch(run_here, args)


def run_here(args: argparse.Namespace) -> dict[str, dict[str, float]] | None:
    """Train or evaluate as one of these processes, see :func:`.launch`; return the metrics, in the
    main one."""
    from ocr_panoptic.engine import Trainer, setup
    from ocr_panoptic.engine.setup import claimed

    cfg, written = setup(args)
    if args.eval_only:
        return Trainer.evaluate(cfg)
    with claimed(cfg.OUTPUT_DIR):
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
    Train a model, as ``ocr-panoptic train`` does: messages are shown and files written as by the
    command, random generators are seeded and logging is set up.

    Args:
        config: a file, or the name of a config of the package.
        data: data files.
        output: folder of the run; by default OUTPUT_DIR of the config.
        resume: go on after the last checkpoint; "auto": or start, where there is none.
        overwrite: start anew in a folder that has the checkpoints of another training.
        num_gpus: processes of this machine. Several are new ones, which import the caller's
            program: it needs ``if __name__ == "__main__":``.
        deterministic: equal results for equal SEEDs on this machine.
        keys: of the config, ``**{"SOLVER.MAX_ITER": 1000}``.

    Returns:
        the metrics of the last evaluation, task -> metric -> value ({"panoptic_seg": {"PQ": ...}});
        of several data sets, name -> those. {} where there was none, or in other processes.

    Raises:
        FileNotFoundError, ValueError: what the command would have said.
        SystemExit: by Ctrl-C or SIGTERM; a checkpoint has been saved.
    """
    args = function_arguments(argument_parser(), config, data, output, keys)
    args.resume, args.overwrite = resume, overwrite
    args.num_gpus, args.deterministic = num_gpus, deterministic
    return launched(args) or {}


def function_arguments(
    parser: argparse.ArgumentParser,
    config: str | PathLike,
    data: str | PathLike | Sequence[str | PathLike],
    output: str | PathLike | None,
    keys: Mapping[str, Any],
) -> argparse.Namespace:
    """Return the arguments of a command, as those of its function give them."""
    from ocr_panoptic.formats.config_files import options_of

    args = parser.parse_args([])
    args.config_file = str(config)
    args.data = list(map(str, as_list(data)))
    args.opts = options_of({**({"OUTPUT_DIR": str(output)} if output else {}), **keys})
    return args
