"""
Check data files, and print a summary by class; or, with --config-file, what a training would do,
without training: data and epochs, learning rates, parameters, memory of a GPU, checkpoints, what
--resume finds; with --time, how long it takes on this machine, and how many workers load its images
as fast as GPUs want them. It needs no GPU, and ends with status 1 where something would stop the
run.

    ocr-panoptic check FILE ...
    ocr-panoptic check --config-file CONFIG [--data FILE ...] [--num-gpus N] [--resume]
        [--time [--gpu-seconds S]] [KEY VALUE ...]
"""

import argparse
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from ocr_panoptic.errors import UserError
from ocr_panoptic.waiting import importing

from .arguments import TrainingArguments, positive_number
from .train import function_arguments

if TYPE_CHECKING:
    from ocr_panoptic.data.data_check import DataSummary
    from ocr_panoptic.engine.run_check import RunCheck

IS_LIGHT = True


def argument_parser() -> TrainingArguments:
    parser = TrainingArguments(__doc__, _fault)
    parser.add_argument(
        "--time", action="store_true", help="train a few iterations, and tell the time of all"
    )
    parser.add_argument(
        "--gpu-seconds",
        type=positive_number,
        default=0.0,
        metavar="S",
        help="with --time: what an iteration takes your GPUs; by default what a V100 would take",
    )
    return parser


def _fault(args: argparse.Namespace) -> str:
    return "--gpu-seconds is of --time" if args.gpu_seconds and not args.time else ""


def run(args: argparse.Namespace) -> int:
    if not args.config_file:  # then what stands at the end are files
        if flags := [word for word in args.opts if word.startswith("--")]:
            raise UserError(f"{' '.join(flags)}: flags stand before the files")
        args.data, args.opts = [*args.data, *args.opts], []
    found = _checked(args)
    print(found)
    return 1 if getattr(found, "faults", ()) else 0


def _checked(args: argparse.Namespace) -> "DataSummary | RunCheck":
    if args.config_file:
        return _check_run(args)
    if not args.data:
        raise UserError("There is nothing to check: name data files, or a config.")
    from ocr_panoptic.data.data_check import check_data

    return check_data(args.data)


def _check_run(args: argparse.Namespace) -> "RunCheck":
    with importing("PyTorch and Detectron2"):
        from ocr_panoptic.engine import complete_config
        from ocr_panoptic.engine.config_files import load_arguments
        from ocr_panoptic.engine.run_check import check_run
        from ocr_panoptic.engine.schedule import scaled
        from ocr_panoptic.engine.setup import check_solver, fit_to_machine

    gpus = args.num_gpus * args.num_machines
    cfg = load_arguments(args)
    device = cfg.MODEL.DEVICE
    cfg.MODEL.DEVICE = "cpu"  # there may be no GPU here; memory is counted for one all the same
    complete_config(cfg, training=True)
    cfg = scaled(cfg, gpus)
    check_solver(cfg, gpus)
    found = check_run(cfg, gpus, resume=args.resume)
    if args.time and not found.faults:
        from ocr_panoptic.engine.run_time import measure_data, measure_time

        cfg.MODEL.DEVICE = device
        fit_to_machine(cfg)
        found.tables["Time on this machine"] = measure_time(cfg, gpus)
        data = measure_data(cfg, gpus, found.operations, args.gpu_seconds)
        found.tables["Data in time"] = data
    return found


def check(
    data: str | PathLike | Sequence[str | PathLike] = (),
    config: str | PathLike = "",
    *,
    num_gpus: int = 1,
    resume: bool | Literal["auto"] = False,
    time: bool = False,
    gpu_seconds: float = 0.0,
    **keys: Any,
) -> "DataSummary | RunCheck":
    """
    Check data files or, with a config, what a training would do and need, as ``ocr-panoptic check``
    does. Nothing is written, and nothing trained but with ``time``.

    Args:
        data: data files.
        config: a file, or the name of a config of the package.
        num_gpus: processes of the training.
        resume: as of :func:`.train`.
        time: train a few iterations, and tell how long all will take on this machine.
        gpu_seconds: with ``time``, what an iteration takes your GPUs; 0 for what a V100 would take.
        keys: of the config, ``**{"SOLVER.MAX_ITER": 1000}``.

    Returns:
        what ``print`` shows as tables: of data alone the images and classes; of a training its
        ``tables``, and ``faults``, what would stop it, a sentence each.

    Raises:
        FileNotFoundError, ValueError: the data have faults, all of which are listed; or what the
            command would have said.
    """
    from ocr_panoptic.engine.undisturbed import undisturbed

    args = function_arguments(argument_parser(), config, data, None, keys)
    args.num_gpus, args.resume = num_gpus, resume
    args.time, args.gpu_seconds = time, gpu_seconds
    if not 0 <= gpu_seconds < float("inf"):
        raise UserError(f"gpu_seconds is {gpu_seconds}; it is a number above 0")
    if fault := _fault(args):
        raise UserError(fault)
    with undisturbed():
        return _checked(args)
