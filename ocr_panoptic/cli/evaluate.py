"""
Compute the metrics of a trained model on DATASETS.TEST, or on the validation splits of data files.

    ocr-panoptic evaluate [--config-file RUN] [--weights FILE] [--data FILE ...] [--num-gpus N]
        [KEY VALUE ...]
"""

import argparse
from collections.abc import Sequence
from os import PathLike
from typing import Any

from .arguments import CommandParser, check_arguments
from .train import function_arguments, launched


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__)
    parser.add_run(can_train=False)
    parser.add_weights()
    return parser


def run(args: argparse.Namespace) -> None:
    check_arguments(args)
    _evaluated(args)


def _evaluated(args: argparse.Namespace) -> dict[str, dict[str, float]] | None:
    from ocr_panoptic.predict.trained_model import resolve_model

    named = resolve_model(args.config_file, args.weights, args.opts)
    args.config_file, names, args.settings = named
    args.opts = names + args.opts
    return launched(args)


def evaluate(
    config: str | PathLike,
    weights: str | PathLike | None = None,
    *,
    data: str | PathLike | Sequence[str | PathLike] = (),
    output: str | PathLike | None = None,
    num_gpus: int = 1,
    **keys: Any,
) -> dict[str, dict[str, float]]:
    """
    Compute the metrics of a trained model, as ``ocr-panoptic evaluate`` does.

    Args:
        config: a run's folder, a config, or the file of trained weights.
        weights: file of trained weights; by default the last checkpoint in the run's folder.
        data: data files, whose validation splits replace DATASETS.TEST.
        output: folder for the results; by default the run's folder, or the config's OUTPUT_DIR.
        num_gpus: number of processes on this machine.
        **keys: overrides of config keys, such as ``**{"TEST.FLIP": True}``.

    Returns:
        metrics of each task, such as {"sem_seg": {"mIoU": 78.2}}; for several data sets, a dict
        with such metrics for each data set; {} if ``num_gpus`` is above 1

    Raises:
        FileNotFoundError, ValueError: an argument is wrong. The command prints the same message.
        SystemExit: the results differ from TEST.EXPECTED_RESULTS.
    """
    args = function_arguments(argument_parser(), config, data, output, num_gpus, keys)
    args.weights = weights
    return _evaluated(args) or {}
