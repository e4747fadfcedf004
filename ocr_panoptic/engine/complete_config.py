"""Completes a config: checks it, and fills in values that depend on the data and the machine."""

import math
from typing import NamedTuple

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.utils import comm

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

from .config_files import check_unread_keys, unread_keys
from .identity import read_identity
from .task import task_of

LEAST_PERIOD = 20  # iterations between two of TEST.EVALUATIONS


class Completed(NamedTuple):
    """
    The result of completing a config.

    Attributes:
        written: YAML of the config for use on every machine: without this machine's device and
            norm, unless the user has set them.
        warnings: sentences about settings that are allowed but seldom intended.
    """

    written: str
    warnings: list[str]


def complete_config(cfg: CfgNode, *, training: bool = False, needs_data: bool = False) -> Completed:
    """
    Check ``cfg``, and fill in the values that depend on the data and the machine.

    For a trained model, the data adopt the order of the model's classes.

    Args:
        training: whether DATASETS.TRAIN is used; otherwise it is not checked.
        needs_data: whether data sets must be named, and their files exist.
    """
    if needs_data:
        _check_data_named(cfg, training)
    names = _complete_from_data(cfg, training)
    if needs_data:
        check_files(names)
    warnings = complete_schedule(cfg) if training else []
    written = cfg.dump()
    _fit_to_machine(cfg)
    return Completed(written, warnings)


def _check_data_named(cfg: CfgNode, training: bool) -> None:
    split, described = ("TRAIN", "train") if training else ("TEST", "val")
    if not cfg.DATASETS[split]:
        files = f"{', '.join(cfg.DATASETS.FILES)}: describes no split called {described}, and "
        raise UserError(
            f"{files if cfg.DATASETS.FILES else ''}DATASETS.{split} is empty, so there is nothing "
            f"to {'train' if training else 'evaluate'} on. Name a file that describes your data, "
            "--data FILE (see datasets/README.md), or a data set that is known here: "
            f"DATASETS.{split} \"('NAME',)\"."
        )


def _complete_from_data(cfg: CfgNode, training: bool) -> list[str]:
    """Check the config, take class counts from the data sets, and return the data sets' names."""
    check_values(cfg)
    check_unread_keys(cfg)
    is_segfix = cfg.MODEL.META_ARCHITECTURE == "SegFix"  # it takes data with any classes
    identity = None
    if not (training or is_segfix):
        identity = read_identity(cfg.MODEL.WEIGHTS, trust_pickle=cfg.MODEL.TRUST_PICKLE)
    names = [*(cfg.DATASETS.TRAIN if training else ()), *cfg.DATASETS.TEST]
    classes = identity.classes if identity else None
    described = register_in_use(cfg.DATASETS.FILES, names, classes)
    for name in names:
        if name not in DatasetCatalog.list():
            known = {*DatasetCatalog.list(), *described, *names_below_root()} - {name}
            split = "TRAIN" if name in cfg.DATASETS.TRAIN else "TEST"
            hint = did_you_mean(name, known)
            raise UserError(f"DATASETS.{split}: {not_registered(name)}{hint}")
    task = task_of(cfg)
    if not is_segfix:
        check_same_classes([name for name in names if name in described])
    for name in names:
        task.complete_classes(cfg, name)
        channels = MetadataCatalog.get(name).get("channels", 3)
        if channels != cfg.INPUT.CHANNELS:
            raise UserError(
                f"INPUT.CHANNELS is {cfg.INPUT.CHANNELS}, but the images of {name} have "
                f"{channels}. Set it to {channels}, and MODEL.PIXEL_MEAN and PIXEL_STD to as many "
                f"values; or write channels: {cfg.INPUT.CHANNELS} into the data file."
            )
    return names


def complete_schedule(cfg: CfgNode) -> list[str]:
    """
    Fill in the schedule of ``cfg``, whose data are registered.

    - MAX_ITER 0 becomes SOLVER.EPOCHS in iterations, with a warm-up of at most a tenth.
    - SOLVER.STEPS that are shares become iterations.
    - TEST.EVAL_PERIOD 0 becomes the period for TEST.EVALUATIONS.

    Returns:
        sentences about settings that are allowed but seldom intended
    """
    solver = cfg.SOLVER
    given = solver.MAX_ITER
    if given == 0 or solver.EPOCHS:
        if not solver.EPOCHS:
            raise UserError(
                "SOLVER.MAX_ITER and SOLVER.EPOCHS are both 0, so the training has no length: "
                "set either."
            )
        images = len(training_records(cfg))
        by_epochs = math.ceil(solver.EPOCHS * images / solver.IMS_PER_BATCH)
        if by_epochs > 10**9:
            raise UserError(
                f"SOLVER.EPOCHS is {solver.EPOCHS:g}, which are {by_epochs} iterations; at most "
                "1,000,000,000 are allowed."
            )
    if given == 0:
        solver.MAX_ITER = by_epochs
        solver.WARMUP_ITERS = min(solver.WARMUP_ITERS, solver.MAX_ITER // 10)
    solver.STEPS = tuple(
        round(step * solver.MAX_ITER) if isinstance(step, float) else step for step in solver.STEPS
    )
    if cfg.TEST.EVALUATIONS and not cfg.TEST.EVAL_PERIOD:
        evaluations = max(1, min(cfg.TEST.EVALUATIONS, solver.MAX_ITER // LEAST_PERIOD))
        cfg.TEST.EVAL_PERIOD = math.ceil(solver.MAX_ITER / evaluations)
    warnings = []
    if given and solver.EPOCHS and given != by_epochs:
        warnings.append(
            f"SOLVER.MAX_ITER {given} is trained, and not the {by_epochs} iterations of "
            f"SOLVER.EPOCHS {solver.EPOCHS:g}, which needs SOLVER.MAX_ITER 0."
        )
    if solver.WARMUP_ITERS >= solver.MAX_ITER > 0:
        warnings.append(
            f"SOLVER.WARMUP_ITERS is {solver.WARMUP_ITERS} and SOLVER.MAX_ITER {solver.MAX_ITER}: "
            "the learning rate never reaches SOLVER.BASE_LR. Set WARMUP_ITERS to a tenth of "
            "MAX_ITER."
        )
    return warnings


def _fit_to_machine(cfg: CfgNode) -> None:
    """Set the device of this machine, and norms that can be trained on it."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if cfg.MODEL.DEVICE == "auto":
        cfg.MODEL.DEVICE = "cuda" if gpus else "cpu"
    device, processes = torch.device(cfg.MODEL.DEVICE), comm.get_world_size()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UserError(
            f"MODEL.DEVICE is {device}, but torch sees {gpus} GPU(s), which are counted from 0. "
            "Set it to auto to use what is there, or to cpu."
        )
    on_gpu = dist.is_initialized() and dist.get_backend() == "nccl"
    if processes > 1 and (device.index is not None or (on_gpu and device.type == "cpu")):
        raise UserError(
            f"MODEL.DEVICE is {device}, and there are {processes} processes with a GPU each. "
            "Set it to cuda, and choose GPUs by CUDA_VISIBLE_DEVICES."
        )
    # With one process, SyncBN equals BN. On CPUs, PyTorch's SyncBN cannot train; Detectron2's
    # naiveSyncBN can. Parameters have the same names in all three.
    if processes == 1 or device.type == "cpu":
        _replace_sync_bn(cfg, unread_keys(cfg))


def _replace_sync_bn(node: CfgNode, unread: set[str], path: str = "") -> None:
    """
    Replace SyncBN in the keys that are read.

    Other keys must keep their defaults, or :func:`.check_unread_keys` refuses them.
    """
    for key, value in node.items():
        if isinstance(value, CfgNode):
            _replace_sync_bn(value, unread, f"{path}{key}.")
        elif key == "NORM" and value == "SyncBN" and path + key not in unread:
            node[key] = "BN" if comm.get_world_size() == 1 else "naiveSyncBN"
