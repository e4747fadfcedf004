"""
Check data files, or a training run before it starts.

With data files, print a summary of the images and classes. With --config-file, print the run's
data and epochs, the checkpoint that --resume would find, and where the config contradicts the data.
No GPU is needed. The exit status is 1 if the data are faulty or the run would fail.

    ocr-panoptic check FILE ...
    ocr-panoptic check --config-file CONFIG [--data FILE ...] [--num-gpus N] [--resume]
        [KEY VALUE ...]
"""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from ocr_panoptic.errors import UserError

from .arguments import CommandParser, RunOptions
from .train import options_of_call

if TYPE_CHECKING:
    from ocr_panoptic.data.data_check import DataSummary
    from ocr_panoptic.workbench.checking.run_check import RunCheck


def argument_parser() -> CommandParser:
    parser = CommandParser(__doc__, RunOptions)
    parser.add_run()
    return parser


def run(options: RunOptions) -> int:
    if not options.config_file:  # the words at the end are files, not KEY VALUE
        options.data, options.opts = [*options.data, *options.opts], []
    summary = _checked(options)
    print(summary)
    return 1 if getattr(summary, "faults", ()) else 0


def _checked(options: RunOptions) -> "DataSummary | RunCheck":
    if not options.config_file:
        if not options.data:
            raise UserError("There is nothing to check. Name data files, or give --config-file.")
        from ocr_panoptic.data.data_check import check_data

        return check_data(options.data)
    from ocr_panoptic.config.files import load_config, overrides_of
    from ocr_panoptic.data.data_file import TRAIN, data_options, read_data_files
    from ocr_panoptic.data.faults import faults_listed
    from ocr_panoptic.data.places import cache_folder
    from ocr_panoptic.predict.complete import complete_config
    from ocr_panoptic.predict.task import task_of
    from ocr_panoptic.workbench.checking.run_check import check_run
    from ocr_panoptic.workbench.planning.contradictions import contradictions
    from ocr_panoptic.workbench.planning.fingerprint import fingerprint

    files = read_data_files(options.data)
    overrides = {**data_options(files), **overrides_of(options.opts)}
    cfg = load_config(options.config_file, overrides)
    if cfg.MODEL.DEVICE.startswith("cuda"):
        cfg.MODEL.DEVICE = "cpu"  # this machine may lack a GPU
    with faults_listed(cache_folder() / "faults.txt"):
        complete_config(cfg, training=True, files=files)
    processes, resume = options.processes(), options.resume
    found = check_run(cfg, processes=processes, resume=resume, overwrite=options.overwrite)
    files = files or read_data_files(cfg.DATASETS.FILES)
    trained = {file.data_set(TRAIN) for file in files if TRAIN in file.splits}
    has_facts = trained and trained <= {*cfg.DATASETS.TRAIN} and task_of(cfg).has_classes
    if has_facts and not found.faults:
        found.warnings += contradictions(cfg, fingerprint(files))
    return found


def check(
    data: str | PathLike | Sequence[str | PathLike] = (),
    config: str | PathLike = "",
    *,
    num_gpus: int = 1,
    resume: bool | Literal["auto"] = False,
    **keys: Any,
) -> "DataSummary | RunCheck":
    """
    Check data files or, with a config, a training run, as ``ocr-panoptic check`` does.

    Nothing is written or trained.

    Args:
        data: data files (datasets/README.md).
        config: config file, or name of a packaged config.
        num_gpus: number of training processes.
        resume: whether the run continues from its last checkpoint; with "auto", it continues only
            if there is a checkpoint.
        **keys: overrides of config keys, such as ``**{"SOLVER.MAX_ITER": 1000}``.

    Returns:
        a summary that ``print`` shows as tables. A run's summary has the attribute ``faults``, a
        list of sentences about everything that would stop the run.

    Raises:
        FileNotFoundError, ValueError: the data have faults, which the message lists, or an
            argument is wrong. The command prints the same message.
    """
    return _checked(options_of_call(config, data, None, num_gpus, keys, resume))
