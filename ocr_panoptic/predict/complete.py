"""Check a config, and fill in the values that depend on its data."""

import logging
import math
from collections.abc import Sequence

import torch
from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

from ocr_panoptic.checkpoint.start import Start
from ocr_panoptic.config.files import choose_device
from ocr_panoptic.config.keys import check_values
from ocr_panoptic.config.unread import check_unread_keys
from ocr_panoptic.data.catalog import check_files, register_data_sets
from ocr_panoptic.data.data_file import DataFile
from ocr_panoptic.data.training_stream import training_records
from ocr_panoptic.errors import UserError

from .identity import check_classes_of
from .task import task_of

LEAST_PERIOD = 20  # minimum iterations between two evaluations that TEST.EVALUATIONS plans

logger = logging.getLogger(__name__)


def complete_config(
    cfg: CfgNode,
    *,
    training: bool = False,
    needs_data: bool = False,
    start: Start | None = None,
    files: Sequence[DataFile] = (),
) -> None:
    """
    Check a config, register its data sets, and fill in what depends on them.

    Args:
        training: whether DATASETS.TRAIN is used; otherwise it is not checked.
        needs_data: whether the config must name data sets whose files exist.
        start: trained weights, whose classes the data must have; data from data files get their
            order of the classes.
        files: content of the data files in DATASETS.FILES, if they have been read already.
    """
    check_values(cfg)
    check_unread_keys(cfg)
    choose_device(cfg)
    check_device(cfg.MODEL.DEVICE)
    if needs_data:
        _check_is_named(cfg, *(("TRAIN", "train") if training else ("TEST", "val")))
    names = [*(cfg.DATASETS.TRAIN if training else ()), *cfg.DATASETS.TEST]
    task = task_of(cfg)
    register_data_sets(
        [*files] or cfg.DATASETS.FILES,
        names,
        start.classes if start and task.has_classes else None,
        same_classes=task.has_classes,
    )
    if start and task.has_classes:
        check_classes_of(start, names)
    for name in names:
        task.complete_classes(cfg, name)
        channels = MetadataCatalog.get(name).get("channels", 3)
        if channels != cfg.INPUT.CHANNELS:
            raise UserError(
                f"INPUT.CHANNELS is {cfg.INPUT.CHANNELS}, but the images of {name} have "
                f"{channels}. Set INPUT.CHANNELS to {channels}, and MODEL.PIXEL_MEAN and PIXEL_STD "
                f"to lists of length {channels}; or write channels: {cfg.INPUT.CHANNELS} into the "
                "data file."
            )
    if needs_data:
        check_files(names)
    if training:
        complete_schedule(cfg)


def _check_is_named(cfg: CfgNode, split: str, described: str) -> None:
    """Refuse a config without a data set for ``split``, "TRAIN" or "TEST"."""
    if cfg.DATASETS[split]:
        return
    files = f"{', '.join(cfg.DATASETS.FILES)}: found no split called {described}, and "
    raise UserError(
        f"{files if cfg.DATASETS.FILES else ''}DATASETS.{split} is empty. Give a "
        f"data file that has the split {described} (--data FILE, see datasets/README.md), or name "
        f"a registered data set: DATASETS.{split} \"('NAME',)\"."
    )


def check_device(name: str) -> None:
    """Refuse a GPU that this machine lacks."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UserError(
            f"MODEL.DEVICE is {device}, but torch sees {gpus} GPU(s), numbered from 0. "
            "Set it to auto for a GPU if there is one, or to cpu."
        )


def complete_schedule(cfg: CfgNode) -> None:
    """
    Fill in the schedule of a config whose data sets are registered.

    - If SOLVER.MAX_ITER is 0, it is computed from SOLVER.EPOCHS, and the warm-up is limited to a
      tenth of MAX_ITER.
    - Fractions of MAX_ITER in SOLVER.STEPS are converted to iterations.
    - If TEST.EVAL_PERIOD is 0, it is set so that the training has TEST.EVALUATIONS evaluations,
      or fewer if the training is short.
    """
    solver = cfg.SOLVER
    if not solver.MAX_ITER:
        if not solver.EPOCHS:
            raise UserError("SOLVER.MAX_ITER and SOLVER.EPOCHS are both 0. Set one of them.")
        images = len(training_records(cfg))
        solver.MAX_ITER = math.ceil(solver.EPOCHS * images / solver.IMS_PER_BATCH)
        solver.WARMUP_ITERS = min(solver.WARMUP_ITERS, solver.MAX_ITER // 10)
    if solver.WARMUP_ITERS >= solver.MAX_ITER:
        logger.warning(
            "SOLVER.WARMUP_ITERS is %d, but SOLVER.MAX_ITER is %d. The learning rate never reaches "
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
