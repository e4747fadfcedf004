"""Prepare the folder and the processes of a run."""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

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

logger = logging.getLogger(__name__)


def prepare_folder(folder: str, *, is_new: bool) -> None:
    """
    Create a run's folder, and start the log there.

    Raises:
        UserError: the folder cannot be written, or has the checkpoints of another training although
            ``is_new`` says that a training starts here.
    """
    fix = "Set OUTPUT_DIR to a folder on this machine that you can write to."
    if not folder or "://" in folder:
        raise UserError(f"OUTPUT_DIR is {folder or 'empty'}. {fix}")
    check_output_folder(folder, "OUTPUT_DIR", fix)
    if is_new:
        check_is_new(folder)
    log_run(folder, rank_of_process())


def check_is_new(folder: str) -> None:
    """Refuse a folder that has the checkpoints of another training."""
    if former := newest_whole(folder):
        raise UserError(
            f"OUTPUT_DIR {folder} has checkpoints of another training; the last is {former}. "
            "Continue that training with --resume, set another OUTPUT_DIR, or start a new training "
            "in this folder with --overwrite."
        )


def rank_of_process() -> int:
    """Return this process's rank, also before torchrun's processes have met."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else comm.get_rank()


def prepare_process(cfg: CfgNode, *, training: bool, deterministic: bool) -> None:
    """Start the log of a run's process, seed its random numbers, and set PyTorch's options."""
    log_run(cfg.OUTPUT_DIR, comm.get_rank())
    logger.debug("%s\nConfig:\n%s", collect_env_info(), cfg.dump())
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
        torch.use_deterministic_algorithms(True, warn_only=True)
    seed_all_rng(None if cfg.SEED < 0 else cfg.SEED + comm.get_rank())
    torch.backends.cudnn.benchmark = training and cfg.CUDNN_BENCHMARK and not deterministic


@contextmanager
def locked_folder(folder: str) -> Iterator[None]:
    """Lock a run's folder against other training runs until the ``with`` block ends."""
    with ExitStack() as stack:
        if comm.is_main_process():
            lock = FileLock(Path(folder) / "training.lock")
            try:
                stack.enter_context(lock.acquire(blocking=False))
            except Timeout as e:
                raise UserError(
                    f"OUTPUT_DIR {folder} is in use by another training. Set another OUTPUT_DIR."
                ) from e
        yield
