"""Turn a command line into a config that is checked, completed and frozen."""

import argparse
import logging
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.utils import comm
from detectron2.utils.collect_env import collect_env_info
from detectron2.utils.env import seed_all_rng
from filelock import FileLock, Timeout

from ocr_panoptic.checkpoint.checkpointer import newest_whole
from ocr_panoptic.config import check_values
from ocr_panoptic.data.data_file import names_below_root
from ocr_panoptic.data.register import (
    check_files,
    check_same_classes,
    not_registered,
    register_in_use,
)
from ocr_panoptic.data.training_stream import training_records
from ocr_panoptic.errors import UserError, did_you_mean
from ocr_panoptic.formats.config_files import values_by_key
from ocr_panoptic.formats.files import check_output_folder
from ocr_panoptic.program import log_run

from .config_files import check_unread_keys, load_arguments, unread_keys
from .identity import read_identity
from .resume import find_checkpoint
from .task import task_of

logger = logging.getLogger(__name__)

LEAST_PERIOD = 20  # minimum iterations between two evaluations that TEST.EVALUATIONS plans


def setup(args: argparse.Namespace) -> tuple[CfgNode, str]:
    """
    Prepare the config, log and seed of a run, as Detectron2's ``default_setup`` does.

    The log is the only file in OUTPUT_DIR that changes. In an evaluation with ``--resume``,
    MODEL.WEIGHTS becomes the last checkpoint.

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
    """Lock an OUTPUT_DIR against other training runs until the end of the block."""
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

    Without ``training``, data sets from data files get the class order of MODEL.WEIGHTS.

    Args:
        training: whether DATASETS.TRAIN is used; otherwise it is not checked.
        needs_data: whether data sets must be named and their files must exist.

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
    names = [*(cfg.DATASETS.TRAIN if training else ()), *cfg.DATASETS.TEST]
    task = task_of(cfg)
    _register(cfg, names, training)
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
    _fit_to_machine(cfg)
    return written


def _register(cfg: CfgNode, names: list[str], training: bool) -> None:
    """Register the data sets; without ``training``, in the class order of MODEL.WEIGHTS."""
    is_segfix = cfg.MODEL.META_ARCHITECTURE == "SegFix"  # it takes data with any classes
    identity = None
    if not (training or is_segfix):
        identity = read_identity(cfg.MODEL.WEIGHTS, trust_pickle=cfg.MODEL.TRUST_PICKLE)
    described = register_in_use(cfg.DATASETS.FILES, names, identity and identity.classes)
    for name in names:
        if name not in DatasetCatalog.list():
            known = {*DatasetCatalog.list(), *described, *names_below_root()} - {name}
            split = "TRAIN" if name in cfg.DATASETS.TRAIN else "TEST"
            hint = did_you_mean(name, known)
            raise UserError(f"DATASETS.{split}: {not_registered(name)}{hint}")
    if not is_segfix:
        check_same_classes([name for name in names if name in described])


def complete_schedule(cfg: CfgNode) -> None:
    """
    Fill in the schedule of a config whose data sets are registered.

    - If SOLVER.MAX_ITER is 0, it is computed from SOLVER.EPOCHS, and the warm-up is limited to a
      tenth of it.
    - Shares of MAX_ITER in SOLVER.STEPS are converted to iterations.
    - If TEST.EVAL_PERIOD is 0, it is set so that the training has TEST.EVALUATIONS evaluations,
      or fewer if the training is short.
    """
    solver = cfg.SOLVER
    if not solver.MAX_ITER:
        if not solver.EPOCHS:
            raise UserError("SOLVER.MAX_ITER and SOLVER.EPOCHS are both 0: set either.")
        images = len(training_records(cfg))
        solver.MAX_ITER = math.ceil(solver.EPOCHS * images / solver.IMS_PER_BATCH)
        solver.WARMUP_ITERS = min(solver.WARMUP_ITERS, solver.MAX_ITER // 10)
    if solver.WARMUP_ITERS >= solver.MAX_ITER:
        logger.warning(
            "SOLVER.WARMUP_ITERS is %d and SOLVER.MAX_ITER %d: the learning rate never reaches "
            "SOLVER.BASE_LR. Set WARMUP_ITERS to a tenth of MAX_ITER.",
            solver.WARMUP_ITERS,
            solver.MAX_ITER,
        )
    solver.STEPS = tuple(
        round(step * solver.MAX_ITER) if isinstance(step, float) else step for step in solver.STEPS
    )
    if cfg.TEST.EVALUATIONS and not cfg.TEST.EVAL_PERIOD:
        evaluations = max(1, min(cfg.TEST.EVALUATIONS, solver.MAX_ITER // LEAST_PERIOD))
        cfg.TEST.EVAL_PERIOD = math.ceil(solver.MAX_ITER / evaluations)


def _fit_to_machine(cfg: CfgNode) -> None:
    """Resolve the device "auto", and replace SyncBN if it is not needed or cannot train here."""
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
    # naiveSyncBN can. Parameters have the same names in all three.
    if processes == 1 or device.type == "cpu":
        unread = unread_keys(cfg)  # check_unread_keys would refuse them with other values
        for key, value in values_by_key(cfg).items():
            if key.endswith(".NORM") and value == "SyncBN" and key not in unread:
                cfg.merge_from_list([key, "BN" if processes == 1 else "naiveSyncBN"])
