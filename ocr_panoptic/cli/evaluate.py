"""
Compute the metrics of a trained model on DATASETS.TEST, or on the validation splits of data files.

    ocr-panoptic evaluate [--config-file RUN] [--weights FILE] [--data FILE ...] [--num-gpus N]
        [KEY VALUE ...]
"""

from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Any

from ocr_panoptic.formats.files import path_argument

from .arguments import CommandParser, RunOptions
from .train import options_of_call


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__, partial(RunOptions, eval_only=True))
    parser.add_run(can_train=False)
    parser.add_weights()
    return parser


def run(options: RunOptions) -> None:
    from . import train_net

    train_net.main(options)


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
    options = options_of_call(config, data, output, num_gpus, keys)
    options.eval_only = True
    if weights is not None:
        options.weights = path_argument("weights", weights)
    from . import train_net

    return train_net.main(options) or {}
