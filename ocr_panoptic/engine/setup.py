"""Setup: the command line becomes a checked config."""

import argparse
import logging
import math
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.utils import comm
from detectron2.utils.collect_env import collect_env_info
from detectron2.utils.env import seed_all_rng
from filelock import FileLock, Timeout

from ocr_panoptic.data.data_check import DataSummary, check_data_sets
from ocr_panoptic.data.data_file import cache_folder, names_below_root
from ocr_panoptic.data.faults import faults_listed
from ocr_panoptic.data.register import (
    check_files,
    check_same_classes,
    not_registered,
    register_in_use,
)
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import check_output_folder
from ocr_panoptic.metrics import METRICS
from ocr_panoptic.nearest import did_you_mean
from ocr_panoptic.program import log_run

from .config_checks import check_unread_keys, check_values, unread_keys
from .config_files import load_arguments
from .resume import check_start, find_checkpoint
from .schedule import complete_schedule, scaled
from .task import task_of

logger = logging.getLogger(__name__)


class Run(NamedTuple):
    """
    A run as arguments, config file, data and machine have made it.

    Attributes:
        cfg: for this machine, frozen.
        written: YAML of its config.yaml, which serves on every machine: it names no device and
            norm unless they were asked for.
    """

    cfg: CfgNode
    written: str


def setup(args: argparse.Namespace) -> Run:
    """
    Resolve a run, as Detectron2's ``default_setup``: config, data, weights, log and seed are
    checked and in place before anything is built. Of the files of OUTPUT_DIR only the log changes.
    In an evaluation with ``--resume`` MODEL.WEIGHTS is the last checkpoint.

    Args:
        args: of :class:`.TrainingArguments`.
    """
    cfg, training = load_arguments(args), not args.eval_only
    if args.deterministic:
        if cfg.SEED < 0:
            raise UserError(f"--deterministic needs a seed, but SEED is {cfg.SEED}: set SEED 0.")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True, warn_only=True)
        cfg.CUDNN_BENCHMARK = False
    _check_data_named(cfg, training)
    fix = "Set OUTPUT_DIR to a folder of this machine that you can write."
    if not cfg.OUTPUT_DIR or "://" in cfg.OUTPUT_DIR or "?" in cfg.OUTPUT_DIR:
        # Detectron2 takes what follows a ? in the name of weights as an option.
        raise UserError(f"OUTPUT_DIR is {cfg.OUTPUT_DIR or 'empty'}. {fix} It has no ://, and no ?")
    check_output_folder(cfg.OUTPUT_DIR, "OUTPUT_DIR", fix)
    with faults_listed(cache_folder() / "faults.txt"):
        names = _complete_from_data(cfg, training)
        check_files(names)
        warnings = data_warnings(cfg, check_data_sets(names, inputs=cfg.INPUT))
    if training:
        warnings += complete_schedule(cfg)
    written = cfg.dump()
    fit_to_machine(cfg)
    if args.deterministic:
        _check_deterministic_pooling(cfg)
    if training:
        check_solver(scaled(cfg, comm.get_world_size()), comm.get_world_size())
    log_run(cfg.OUTPUT_DIR, comm.get_rank())
    for text in warnings:
        logger.warning(text)
    logger.debug("Arguments: %s\n%s\nConfig:\n%s", args, collect_env_info(), written)
    seed_all_rng(None if cfg.SEED < 0 else cfg.SEED + comm.get_rank())
    torch.backends.cudnn.benchmark = training and cfg.CUDNN_BENCHMARK
    checkpoint = find_checkpoint(cfg.OUTPUT_DIR, args.resume)
    check_start(cfg, checkpoint, training=training)
    if not training:
        cfg.MODEL.WEIGHTS = checkpoint or cfg.MODEL.WEIGHTS
    cfg.freeze()
    return Run(cfg, written)


def complete_config(cfg: CfgNode, *, training: bool = False) -> list[str]:
    """
    Fill in what follows from the data and the machine, and check what can be known before
    anything is built. Changes ``cfg``.

    Args:
        training: DATASETS.TRAIN are used, too. Otherwise nothing that is about them matters.

    Returns:
        the warnings of :func:`.complete_schedule`.
    """
    _complete_from_data(cfg, training)
    warnings = complete_schedule(cfg) if training else []
    fit_to_machine(cfg)
    return warnings


def data_warnings(cfg: CfgNode, found: DataSummary) -> list[str]:
    """Return what a user should know of data sets that have no fault."""
    finds_things = cfg.MODEL.META_ARCHITECTURE == "PanopticFPN"
    return found.warnings_for(cfg.TEST.DETECTIONS_PER_IMAGE if finds_things else math.inf)


def claimed(folder: str) -> AbstractContextManager:
    """Keep other trainings out of an OUTPUT_DIR until the end of the block, or of the process."""
    if not comm.is_main_process():
        return nullcontext()
    try:
        return FileLock(Path(folder) / "training.lock").acquire(blocking=False)
    except Timeout as e:
        raise UserError(f"OUTPUT_DIR {folder} is that of another training: set another.") from e


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


def _check_deterministic_pooling(cfg: CfgNode) -> None:
    """Refuse torchvision's deterministic ROIAlign with sampling ratio 0 on a GPU. It takes as many
    points of each bin as the map has pixels: for 512 boxes on 256 channels of 200 x 336 a tensor of
    1608 GiB."""
    if cfg.MODEL.META_ARCHITECTURE == "PanopticFPN" and cfg.MODEL.DEVICE.startswith("cuda"):
        heads = ["ROI_BOX_HEAD", *(["ROI_MASK_HEAD"] if cfg.MODEL.MASK_ON else [])]
        heads = [head for head in heads if cfg.MODEL[head].POOLER_SAMPLING_RATIO <= 0]
        if fix := " ".join(f"MODEL.{head}.POOLER_SAMPLING_RATIO 2" for head in heads):
            raise UserError(
                "--deterministic on a GPU needs more memory than there is, as boxes are pooled by "
                f"sampling ratio 0. Set {fix}, which trains another model than the published one, "
                "or leave --deterministic out."
            )


def check_solver(cfg: CfgNode, processes: int) -> None:
    """
    Check what only a training needs: its batch, and evaluations.

    Args:
        cfg: scaled to the number of processes (SOLVER.REFERENCE_WORLD_SIZE), device resolved.
        processes: number of processes of the run.
    """
    batch, steps = cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.ACCUMULATION_STEPS
    if steps < 1 or batch < 1 or batch % (processes * steps):
        raise UserError(
            f"SOLVER.IMS_PER_BATCH is {batch}, which {processes} process(es) times "
            f"SOLVER.ACCUMULATION_STEPS {steps} do not divide. Each part of a batch needs the "
            "same number of images, at least 1."
        )
    if cfg.TEST.BEST_CHECKPOINT:
        _check_best_metric(cfg)
    if cfg.TEST.PATIENCE and not cfg.TEST.EVAL_PERIOD:
        raise UserError(
            f"TEST.PATIENCE is {cfg.TEST.PATIENCE}, in evaluations during the training, which has "
            "none: set TEST.EVAL_PERIOD, or TEST.EVALUATIONS."
        )


def _check_best_metric(cfg: CfgNode) -> None:
    """Refuse a metric that no evaluation has, and errors. Evaluators may add metrics."""
    best, data = cfg.TEST.BEST_CHECKPOINT, cfg.DATASETS.TEST
    *dataset, task, name = ["", *best.split("/")][-3 if len(data) > 1 else -2 :]
    names = {metric.name: metric.lower_is_better for metric in METRICS if metric.task == task}
    misspelt = name not in names and name.lower() in {known.lower() for known in names}
    is_known = data and names and not misspelt and (not dataset or dataset[0] in data)
    if not is_known or names.get(name):
        form = f"{data[0]}/panoptic_seg/PQ" if len(data) > 1 else "panoptic_seg/PQ"
        raise UserError(
            f"TEST.BEST_CHECKPOINT is {best}, which no evaluation on DATASETS.TEST {data} has, or "
            f"which is better when lower. It is of the form {form}, or sem_seg/mIoU, bbox/AP, "
            f"segm/AP; {task} has {', '.join(sorted(names)) or 'no metrics'}."
        )


def _complete_from_data(cfg: CfgNode, training: bool) -> list[str]:
    """Check the config and take the class counts from the data sets that are used; return their
    names."""
    check_values(cfg)
    check_unread_keys(cfg)
    names = [*(cfg.DATASETS.TRAIN if training else ()), *cfg.DATASETS.TEST]
    described = register_in_use(cfg.DATASETS.FILES, names)
    for name in names:
        if name not in DatasetCatalog.list():
            known = {*DatasetCatalog.list(), *described, *names_below_root()} - {name}
            split = "TRAIN" if name in cfg.DATASETS.TRAIN else "TEST"
            hint = did_you_mean(name, known)
            raise UserError(f"DATASETS.{split}: {not_registered(name)}{hint}")
    task = task_of(cfg)
    if cfg.MODEL.META_ARCHITECTURE != "SegFix":  # which takes data of any classes
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


def fit_to_machine(cfg: CfgNode) -> None:
    """Put the device of this machine, and norms that it can train, into a config."""
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
            "Set it to cuda, and CUDA_VISIBLE_DEVICES where they are to have certain ones."
        )
    # With one process, SyncBN equals BN. PyTorch's does not train on CPUs, Detectron2's does.
    # Parameters have the same names in all of them.
    if processes == 1 or device.type == "cpu":
        _replace_sync_bn(cfg, unread_keys(cfg))


def _replace_sync_bn(node: CfgNode, unread: set[str], path: str = "") -> None:
    """Unread keys stay as they are: :func:`.check_unread_keys` refuses others."""
    for key, value in node.items():
        if isinstance(value, CfgNode):
            _replace_sync_bn(value, unread, f"{path}{key}.")
        elif key == "NORM" and value == "SyncBN" and path + key not in unread:
            node[key] = "BN" if comm.get_world_size() == 1 else "naiveSyncBN"
