"""Turn a command line into a config that is checked, completed and frozen."""

import argparse
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.utils import comm
from detectron2.utils.collect_env import collect_env_info
from detectron2.utils.env import seed_all_rng
from filelock import FileLock, Timeout

from ocr_panoptic.checkpoint.checkpointer import newest_whole
from ocr_panoptic.config.keys import KEYS, check_values
from ocr_panoptic.config.rules import value_of
from ocr_panoptic.config.unread import check_unread_keys, load_arguments, unread_keys
from ocr_panoptic.data.register import check_files, register_data_sets
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import check_output_folder
from ocr_panoptic.predict.identity import read_identity
from ocr_panoptic.predict.task import task_of
from ocr_panoptic.program import log_run

from .optimizer import complete_schedule
from .resume import find_checkpoint

logger = logging.getLogger(__name__)


def setup(args: argparse.Namespace) -> tuple[CfgNode, str]:
    """
    Prepare the config, log and seed of a run.

    Only the log is written to OUTPUT_DIR. In an evaluation with ``--resume``, MODEL.WEIGHTS
    becomes the last checkpoint.

    Returns:
        the frozen config, adapted to this machine, and the text of a config.yaml for any machine
    """
    cfg, training = load_arguments(args), not args.eval_only
    if args.deterministic:
        if cfg.SEED < 0:
            raise UserError(f"--deterministic needs a seed, but SEED is {cfg.SEED}: set SEED 0.")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
        torch.use_deterministic_algorithms(True, warn_only=True)
        cfg.CUDNN_BENCHMARK = False
    fix = "Set OUTPUT_DIR to a folder of this machine that you can write."
    if not cfg.OUTPUT_DIR or "://" in cfg.OUTPUT_DIR:
        raise UserError(f"OUTPUT_DIR is {cfg.OUTPUT_DIR or 'empty'}. {fix}")
    check_output_folder(cfg.OUTPUT_DIR, "OUTPUT_DIR", fix)
    checkpoint = find_checkpoint(cfg.OUTPUT_DIR, args.resume)
    if not training:
        cfg.MODEL.WEIGHTS = checkpoint or cfg.MODEL.WEIGHTS
    elif not (args.resume or args.overwrite) and (former := newest_whole(cfg.OUTPUT_DIR)):
        raise UserError(
            f"OUTPUT_DIR {cfg.OUTPUT_DIR} has the checkpoints of another run, {former} the "
            "last. Go on with it (--resume), set another OUTPUT_DIR, or write over it "
            "(--overwrite)."
        )
    log_run(cfg.OUTPUT_DIR, comm.get_rank())
    written = complete_config(cfg, training=training, needs_data=True)
    logger.debug("Arguments: %s\n%s\nConfig:\n%s", args, collect_env_info(), written)
    seed_all_rng(None if cfg.SEED < 0 else cfg.SEED + comm.get_rank())
    torch.backends.cudnn.benchmark = training and cfg.CUDNN_BENCHMARK
    cfg.freeze()
    return cfg, written


@contextmanager
def locked_folder(folder: str) -> Iterator[None]:
    """Lock a run's folder against other training runs until the ``with`` block ends."""
    with ExitStack() as stack:
        if comm.is_main_process():
            lock = FileLock(Path(folder) / "training.lock")
            try:
                stack.enter_context(lock.acquire(blocking=False))
            except Timeout as e:
                raise UserError(f"OUTPUT_DIR {folder} belongs to another run: set another.") from e
        yield


def complete_config(cfg: CfgNode, *, training: bool = False, needs_data: bool = False) -> str:
    """
    Check ``cfg``, and fill in the values that depend on the data and the machine.

    Without ``training``, data sets from data files get the class order of the trained weights.

    Args:
        training: whether DATASETS.TRAIN is used; otherwise it is not checked.
        needs_data: whether the config must name data sets whose files exist.

    Returns:
        YAML of the completed config before its device and norms are adapted to this machine
    """
    split, described = ("TRAIN", "train") if training else ("TEST", "val")
    if needs_data and not cfg.DATASETS[split]:
        files = f"{', '.join(cfg.DATASETS.FILES)}: describes no split called {described}, and "
        raise UserError(
            f"{files if cfg.DATASETS.FILES else ''}DATASETS.{split} is empty. Name a file that "
            "describes your data, --data FILE (see datasets/README.md), or a data set that is "
            f"known here: DATASETS.{split} \"('NAME',)\"."
        )
    check_values(cfg)
    check_unread_keys(cfg)
    unread = unread_keys(cfg)
    names = [*(cfg.DATASETS.TRAIN if training else ()), *cfg.DATASETS.TEST]
    task = task_of(cfg)
    identity = None
    if task.has_classes and not training:
        identity = read_identity(cfg.MODEL.WEIGHTS, trust_pickle=cfg.MODEL.TRUST_PICKLE)
    register_data_sets(
        cfg.DATASETS.FILES,
        names,
        identity and identity.classes,
        same_classes=task.has_classes,
    )
    for name in names:
        task.complete_classes(cfg, name)
        channels = MetadataCatalog.get(name).get("channels", 3)
        if channels != cfg.INPUT.CHANNELS:
            raise UserError(
                f"INPUT.CHANNELS is {cfg.INPUT.CHANNELS}, but the images of {name} have "
                f"{channels}. Set it to {channels}, and MODEL.PIXEL_MEAN and PIXEL_STD to as many "
                f"values; or write channels: {cfg.INPUT.CHANNELS} into the data file."
            )
    if needs_data:
        check_files(names)
    if training:
        complete_schedule(cfg)
    written = cfg.dump()
    _fit_to_machine(cfg, unread)
    return written


def _fit_to_machine(cfg: CfgNode, unread: set[str]) -> None:
    """
    Resolve the device "auto", and replace SyncBN in a single process and on CPUs.

    The keys in ``unread``, which the model does not read, keep their values.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if cfg.MODEL.DEVICE == "auto":
        cfg.MODEL.DEVICE = "cuda" if gpus else "cpu"
    device, processes = torch.device(cfg.MODEL.DEVICE), comm.get_world_size()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UserError(
            f"MODEL.DEVICE is {device}, but torch sees {gpus} GPU(s), which are counted from 0. "
            "Set it to auto to use what is there, or to cpu."
        )
    # With one process, SyncBN equals BN. On CPUs, PyTorch's SyncBN cannot train; Detectron2's
    # naiveSyncBN can. Parameters have the same names in all three. If unread keys changed,
    # check_unread_keys would refuse the config that is saved with the results.
    if processes == 1 or device.type == "cpu":
        for key in (key.name for key in KEYS if key.name.endswith(".NORM")):
            if key not in unread and value_of(cfg, key) == "SyncBN":
                cfg.merge_from_list([key, "BN" if processes == 1 else "naiveSyncBN"])
