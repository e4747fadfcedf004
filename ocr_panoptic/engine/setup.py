"""Setup of a run: from the command line to a checked config."""

import argparse
import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from detectron2.config import CfgNode
from detectron2.utils import comm
from detectron2.utils.collect_env import collect_env_info
from detectron2.utils.env import seed_all_rng
from filelock import FileLock, Timeout

from ocr_panoptic.checkpoint.checkpointer import newest_whole
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import check_output_folder
from ocr_panoptic.program import log_run

from .complete_config import complete_config
from .config_files import load_arguments
from .resume import find_checkpoint

logger = logging.getLogger(__name__)


class Run(NamedTuple):
    """
    A resolved run.

    Attributes:
        cfg: frozen config for this machine.
        written: YAML of config.yaml for use on every machine: without this machine's device and
            norm, unless the user has set them.
    """

    cfg: CfgNode
    written: str


def setup(args: argparse.Namespace) -> Run:
    """
    Resolve a run before anything is built, as Detectron2's ``default_setup`` does.

    Check the config, and set up log and seed. The log is the only file in OUTPUT_DIR that
    changes. In an evaluation with ``--resume``, MODEL.WEIGHTS is the last checkpoint.

    Args:
        args: arguments of a command with :meth:`.CommandParser.add_run`.
    """
    cfg, training = load_arguments(args), not args.eval_only
    if args.deterministic:
        if cfg.SEED < 0:
            raise UserError(f"--deterministic needs a seed, but SEED is {cfg.SEED}: set SEED 0.")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True, warn_only=True)
        cfg.CUDNN_BENCHMARK = False
    fix = "Set OUTPUT_DIR to a folder of this machine that you can write."
    if not cfg.OUTPUT_DIR or "://" in cfg.OUTPUT_DIR or "?" in cfg.OUTPUT_DIR:
        # Detectron2 parses the text after a ? in the name of weights as options.
        raise UserError(f"OUTPUT_DIR is {cfg.OUTPUT_DIR or 'empty'}. {fix} It has no ://, and no ?")
    check_output_folder(cfg.OUTPUT_DIR, "OUTPUT_DIR", fix)
    for name in ("log.txt", "metrics.json", "training.lock"):  # other files are replaced
        if os.path.islink(path := os.path.join(cfg.OUTPUT_DIR, name)):
            raise UserError(
                f"{path} is a link to {os.readlink(path)}, into which this run would write. Remove "
                "the link, or set another OUTPUT_DIR."
            )
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe would wait for ever
            raise UserError(f"{path} is not a file. Remove it, or set another OUTPUT_DIR.")
    if multiprocessing.current_process().daemon and cfg.DATALOADER.NUM_WORKERS:
        raise UserError(
            f"DATALOADER.NUM_WORKERS is {cfg.DATALOADER.NUM_WORKERS}, but this process is a worker "
            "of a pool, which can start no processes. Set it to 0."
        )
    checkpoint = find_checkpoint(cfg.OUTPUT_DIR, args.resume)
    if not training:
        cfg.MODEL.WEIGHTS = checkpoint or cfg.MODEL.WEIGHTS
    elif not (args.resume or args.overwrite) and (former := newest_whole(cfg.OUTPUT_DIR)):
        raise UserError(
            f"OUTPUT_DIR {cfg.OUTPUT_DIR} has the checkpoints of another run, {former} the "
            "last. Go on with it (--resume), set another OUTPUT_DIR, or write over it "
            "(--overwrite)."
        )
    written, warnings = complete_config(cfg, training=training, needs_data=True)
    if args.deterministic:
        _check_deterministic_pooling(cfg)
    log_run(cfg.OUTPUT_DIR, comm.get_rank())
    for text in warnings:
        logger.warning(text)
    logger.debug("Arguments: %s\n%s\nConfig:\n%s", args, collect_env_info(), written)
    seed_all_rng(None if cfg.SEED < 0 else cfg.SEED + comm.get_rank())
    torch.backends.cudnn.benchmark = training and cfg.CUDNN_BENCHMARK
    cfg.freeze()
    return Run(cfg, written)


_RUNNING = threading.Lock()


@contextmanager
def sole_run() -> Iterator[None]:
    """
    Refuse other runs of this process until the end of the block.

    The :func:`setup` of a second run would replace the log and the random state of the first.
    """
    if not _RUNNING.acquire(blocking=False):
        raise UserError(
            "This process trains or evaluates in another thread: use a separate process for each "
            "run."
        )
    try:
        yield
    finally:
        _RUNNING.release()


@contextmanager
def locked_folder(folder: str) -> Iterator[None]:
    """Refuse other training runs in this OUTPUT_DIR until the end of the block."""
    with ExitStack() as stack:
        if comm.is_main_process():
            lock = FileLock(Path(folder) / "training.lock")
            try:
                stack.enter_context(lock.acquire(blocking=False))
            except Timeout as e:
                raise UserError(f"OUTPUT_DIR {folder} belongs to another run: set another.") from e
        yield


def _check_deterministic_pooling(cfg: CfgNode) -> None:
    """
    Refuse torchvision's deterministic ROIAlign with sampling ratio 0 on a GPU.

    It samples as many points in each bin as the map has pixels: 512 boxes on 256 channels of
    200 x 336 need a tensor of 1608 GiB.
    """
    if cfg.MODEL.META_ARCHITECTURE == "PanopticFPN" and cfg.MODEL.DEVICE.startswith("cuda"):
        heads = ["ROI_BOX_HEAD", *(["ROI_MASK_HEAD"] if cfg.MODEL.MASK_ON else [])]
        heads = [head for head in heads if cfg.MODEL[head].POOLER_SAMPLING_RATIO <= 0]
        if fix := " ".join(f"MODEL.{head}.POOLER_SAMPLING_RATIO 2" for head in heads):
            raise UserError(
                "--deterministic on a GPU needs more memory than there is, as boxes are pooled by "
                f"sampling ratio 0. Set {fix}, which trains another model than the published one, "
                "or leave --deterministic out."
            )
