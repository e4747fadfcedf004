"""Setup: the command line becomes a checked config."""

import argparse
import difflib
import logging
import os
from pathlib import Path
from typing import NamedTuple

import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.utils import comm
from detectron2.utils.collect_env import collect_env_info
from detectron2.utils.env import seed_all_rng

from ocr_panoptic.config import TIMM
from ocr_panoptic.console import show_messages, write_log
from ocr_panoptic.data.data_check import check_data_sets
from ocr_panoptic.data.data_file import cache_folder, names_below_root
from ocr_panoptic.data.faults import faults_listed
from ocr_panoptic.data.published.register import register_published
from ocr_panoptic.data.register import (
    check_files,
    check_same_classes,
    not_registered,
    register_in_use,
)
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import check_output_folder
from ocr_panoptic.formats.run_folder import evaluation_folder
from ocr_panoptic.metrics import METRICS

from .agreement import agree, stop_together
from .config_checks import check_unread_keys, check_values, unread_keys
from .config_files import load_arguments, values_by_key
from .resume import check_start, find_checkpoint
from .run_claim import claim
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


def complete_config(cfg: CfgNode, *, training: bool = False) -> None:
    """
    Fill in what follows from the data and the machine, and check what can be known before
    anything is built. Changes ``cfg``.

    Args:
        training: DATASETS.TRAIN are used, too. Otherwise nothing that is about them matters.

    Raises:
        ValueError: naming key, found and expected value.
    """
    _complete_from_data(cfg, training)
    if training:
        complete_schedule(cfg)
    fit_to_machine(cfg)


def setup(args: argparse.Namespace, cfg: CfgNode | None = None) -> Run:
    """
    Resolve a run: :func:`load_config`, what :func:`complete_config` does, :func:`check_solver`,
    :func:`.resume.check_start`, logging and seed. Of the files of OUTPUT_DIR only the log and the
    claim change. In an evaluation with ``--resume`` MODEL.WEIGHTS is the last checkpoint.

    Args:
        args: of :class:`.TrainingArguments`, and perhaps ``deterministic``
        cfg: what these arguments load, where :func:`.launch` has loaded it; is changed.

    Raises:
        OSError, ValueError: as those four; ValueError also where an evaluation, or a
            training, has no data set, where ``deterministic`` has no seed or too large tensors,
            where several processes have other configs, and where OUTPUT_DIR cannot be written or
            another training has it.
    """
    with stop_together():
        run = _resolve(args, cfg or load_arguments(args))
    cfg = run.cfg
    agree(values_by_key(cfg))
    with stop_together():
        checkpoint = find_checkpoint(cfg.OUTPUT_DIR, args.resume)
    agree({"checkpoint": checkpoint})
    with stop_together():
        check_start(cfg, checkpoint, training=not args.eval_only)
        if args.eval_only:
            cfg.MODEL.WEIGHTS = checkpoint or cfg.MODEL.WEIGHTS
    cfg.freeze()
    return run


def _resolve(args: argparse.Namespace, cfg: CfgNode) -> Run:
    training, is_deterministic = not args.eval_only, getattr(args, "deterministic", False)
    if is_deterministic:
        _make_deterministic(cfg)
    _check_data_named(cfg, training)
    _check_output_dir(cfg.OUTPUT_DIR)
    for name in cfg.DATASETS.TEST:
        _check_folder(evaluation_folder(cfg.OUTPUT_DIR, name))
    with faults_listed(cache_folder() / "faults.txt"):
        names = _complete_from_data(cfg, training)
        check_files(names)
        check_data_sets(names, inputs=cfg.INPUT)
    if training:
        complete_schedule(cfg)
    written = cfg.dump()
    fit_to_machine(cfg)
    if is_deterministic:
        _check_deterministic_pooling(cfg)
    if training:
        _say_frozen(cfg)
        processes = comm.get_world_size()
        check_solver(scaled(cfg, processes), processes)
        claim(cfg.OUTPUT_DIR)
    _begin(cfg, written, args)
    return Run(cfg, written)


def _check_data_named(cfg: CfgNode, training: bool) -> None:
    split, described = ("TRAIN", "train") if training else ("TEST", "val")
    if cfg.DATASETS[split]:
        return
    purpose = "train on" if training else "evaluate on (--eval-only)"
    if files := cfg.DATASETS.FILES:
        raise UserError(
            f"{', '.join(files)}: describes no split called {described}, so there is nothing to "
            f"{purpose}. Add it, or name one of the others: DATASETS.{split} \"('NAME_SPLIT',)\"."
        )
    raise UserError(
        f"DATASETS.{split} is empty, so there is nothing to {purpose}. Name a file that describes "
        "your data, --data FILE (see datasets/README.md), or a data set that is known here: "
        f"DATASETS.{split} \"('NAME',)\"."
    )


def _check_output_dir(folder: str) -> None:
    """Make the folder of a run, and see that it can be written and listed."""
    fix = "Set OUTPUT_DIR to a folder of this machine that you can write."
    if not folder or "://" in folder:
        raise UserError(f"OUTPUT_DIR is {folder or 'empty'}. {fix}")
    if "?" in folder:
        raise UserError(
            f"OUTPUT_DIR is {folder}, but what follows a ? in the name of weights is an option to "
            "Detectron2, so that it could not read its own checkpoints. Set another name."
        )
    check_output_folder(folder, "OUTPUT_DIR", fix)


def _check_folder(folder: Path) -> None:
    for path in (folder, folder.parent):
        if path.exists() and not path.is_dir():
            raise UserError(
                f"{path} is a file, where results of an evaluation are to be in a folder. Remove "
                "it, or set another OUTPUT_DIR."
            )


def _begin(cfg: CfgNode, written: str, args: argparse.Namespace) -> None:
    """Log and seed of a run, as Detectron2's ``default_setup``, which shows all of it on the
    terminal, and writes the config of an evaluation over that of the training."""
    rank, training = comm.get_rank(), not args.eval_only
    show_messages(rank)
    write_log(cfg.OUTPUT_DIR, rank)
    logger.debug("Process %d of %d; arguments: %s", rank, comm.get_world_size(), args)
    logger.debug("Environment:\n%s", collect_env_info())
    logger.debug("Config:\n%s", written)
    logger.debug(
        "MODEL.DEVICE is %s (torch sees %d GPU(s)); norm of the backbone %s, of the OCR head %s",
        cfg.MODEL.DEVICE,
        torch.cuda.device_count(),
        (cfg.MODEL.TIMM if "timm" in cfg.MODEL.BACKBONE.NAME else cfg.MODEL.RESNETS).NORM,
        cfg.MODEL.OCR.NORM or "none",
    )
    seed_all_rng(None if cfg.SEED < 0 else cfg.SEED + rank)
    torch.backends.cudnn.benchmark = training and cfg.CUDNN_BENCHMARK


def _say_frozen(cfg: CfgNode) -> None:
    """Another value is refused, but this is Detectron2's default, which most configs leave."""
    if TIMM.holds(cfg) and cfg.MODEL.BACKBONE.FREEZE_AT:
        logger.warning(
            "MODEL.BACKBONE.FREEZE_AT is %d, and freezes nothing of a network of timm: set it to "
            "0, or MODEL.TIMM.FROZEN True, which freezes all of it",
            cfg.MODEL.BACKBONE.FREEZE_AT,
        )


def _make_deterministic(cfg: CfgNode) -> None:
    """PyTorch's deterministic algorithms; it warns of an operation that has none (the gradient of
    cross-entropy over images on a GPU is one)."""
    if cfg.SEED < 0:
        raise UserError(f"--deterministic needs a seed, but SEED is {cfg.SEED}: set SEED 0, say.")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
    torch.use_deterministic_algorithms(True, warn_only=True)
    cfg.CUDNN_BENCHMARK = False


def _check_deterministic_pooling(cfg: CfgNode) -> None:
    """torchvision's ROIAlign for a GPU with a deterministic gradient is written in Python. With
    sampling ratio 0, by the size of the box, it takes as many points of each bin as the map has
    pixels: for 512 boxes on 256 channels of 200 x 336 a tensor of 1608 GiB."""
    if cfg.MODEL.META_ARCHITECTURE != "PanopticFPN" or not cfg.MODEL.DEVICE.startswith("cuda"):
        return
    heads = ("ROI_BOX_HEAD", "ROI_MASK_HEAD") if cfg.MODEL.MASK_ON else ("ROI_BOX_HEAD",)
    heads = [head for head in heads if cfg.MODEL[head].POOLER_SAMPLING_RATIO <= 0]
    keys = [f"MODEL.{head}.POOLER_SAMPLING_RATIO" for head in heads]
    if keys:
        raise UserError(
            f"--deterministic on a GPU with {' and '.join(keys)} 0 needs more memory than a GPU "
            "has: torchvision's deterministic ROIAlign takes a point of each bin for every pixel "
            f"of the features. Set {' 2 '.join(keys)} 2, which trains another model than the "
            "published one, or leave --deterministic out."
        )


def check_solver(cfg: CfgNode, processes: int) -> None:
    """
    Check what training alone needs.

    Args:
        cfg: scaled to the number of processes (SOLVER.REFERENCE_WORLD_SIZE), device resolved.
        processes: of the run.

    Raises:
        ValueError: if the batch cannot be dealt out evenly, the device has no mixed precision, or
            nothing gives the metric of TEST.BEST_CHECKPOINT.
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
    if cfg.SOLVER.AMP.ENABLED and torch.device(cfg.MODEL.DEVICE).type not in ("cuda", "cpu"):
        raise UserError(
            "SOLVER.AMP.ENABLED is True, but mixed precision needs a CUDA GPU (float16) or a CPU "
            f"(bfloat16) and MODEL.DEVICE is {cfg.MODEL.DEVICE}. Set SOLVER.AMP.ENABLED False."
        )


def _check_best_metric(cfg: CfgNode) -> None:
    """The value may also be a metric that an evaluator adds; misspelt ones are refused."""
    best, data = cfg.TEST.BEST_CHECKPOINT, cfg.DATASETS.TEST
    *dataset, task, name = ["", *best.split("/")][-3 if len(data) > 1 else -2 :]
    names = {metric.name for metric in METRICS if metric.task == task}
    if any(m.lower_is_better for m in METRICS if (m.task, m.name) == (task, name)):
        raise UserError(
            f"TEST.BEST_CHECKPOINT is {best}, an error, and the best checkpoint is the one of the "
            f"highest value; name a metric that rises, such as {task}/mIoU"
        )
    misspelt = name not in names and name.lower() in {known.lower() for known in names}
    if not data or not names or misspelt or (dataset and dataset[0] not in data):
        form = f"{data[0]}/panoptic_seg/PQ" if len(data) > 1 else "panoptic_seg/PQ"
        raise UserError(
            f"TEST.BEST_CHECKPOINT is {best}, which no evaluation on DATASETS.TEST {data} has. It "
            f"is of the form {form}, or sem_seg/mIoU, bbox/AP, segm/AP"
            + (f"; {task} has {', '.join(sorted(names))}." if names else ".")
        )


def _complete_from_data(cfg: CfgNode, training: bool) -> list[str]:
    """Check the config and take the class counts from the data sets that are used; return their
    names."""
    check_values(cfg)
    check_unread_keys(cfg)
    names = [*(cfg.DATASETS.TRAIN if training else ()), *cfg.DATASETS.TEST]
    register_published(names)
    described = register_in_use(cfg.DATASETS.FILES, names)
    for name in names:
        _check_registered(cfg, name, described)
    task = task_of(cfg)
    if cfg.MODEL.META_ARCHITECTURE != "SegFix":  # which takes data of any classes
        check_same_classes([name for name in names if name in described])
    for name in names:
        task.complete_classes(cfg, name)
        _check_channels(cfg, name)
    return names


def _check_channels(cfg: CfgNode, name: str) -> None:
    channels = MetadataCatalog.get(name).get("channels", 3)
    if channels != cfg.INPUT.CHANNELS:
        raise UserError(
            f"INPUT.CHANNELS is {cfg.INPUT.CHANNELS}, but the images of {name} have {channels}. "
            f"Set it to {channels}, and MODEL.PIXEL_MEAN and PIXEL_STD to as many values; or write "
            f"channels: {cfg.INPUT.CHANNELS} into the data file."
        )


def _check_registered(cfg: CfgNode, name: str, described: list[str]) -> None:
    registered = DatasetCatalog.list()
    if name in registered:
        return
    split = "TRAIN" if name in cfg.DATASETS.TRAIN else "TEST"
    known = {*registered, *described, *names_below_root()} - {name}
    close = difflib.get_close_matches(name, known, n=5)
    there = f" Similar names: {', '.join(close)}." if close else ""
    raise UserError(f"DATASETS.{split}: {not_registered(name)}{there}")


def fit_to_machine(cfg: CfgNode) -> None:
    """
    Put the device of this machine, and norms that it can train, into a config.

    Raises:
        ValueError: it asks for a GPU that there is not, or for one GPU and several processes.
    """
    if cfg.MODEL.DEVICE == "auto":
        cfg.MODEL.DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    if cfg.MODEL.DEVICE.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            f"MODEL.DEVICE is {cfg.MODEL.DEVICE}, but torch sees no GPU. "
            "Set it to auto to use what is there, or to cpu."
        )
    _check_number_of_gpu(cfg.MODEL.DEVICE)
    # With one process, SyncBN equals BN. PyTorch's does not train on CPUs, Detectron2's does.
    # Parameters have the same names in all of them.
    if comm.get_world_size() == 1 or cfg.MODEL.DEVICE == "cpu":
        _replace_sync_bn(cfg, unread_keys(cfg))


def _check_number_of_gpu(device: str) -> None:
    number, seen = torch.device(device).index, torch.cuda.device_count()
    if number is None or not device.startswith("cuda"):
        return
    if number >= seen:
        raise UserError(
            f"MODEL.DEVICE is {device}, but torch sees {seen} GPU(s), which are counted from 0."
        )
    if comm.get_world_size() > 1:
        raise UserError(
            f"MODEL.DEVICE is {device}, one GPU, and there are {comm.get_world_size()} processes. "
            "Set it to cuda, and CUDA_VISIBLE_DEVICES where they are to have certain ones."
        )


def _replace_sync_bn(node: CfgNode, unread: set[str], path: str = "") -> None:
    """Unread keys stay as they are: :func:`.check_unread_keys` refuses others."""
    for key, value in node.items():
        if isinstance(value, CfgNode):
            _replace_sync_bn(value, unread, f"{path}{key}.")
        elif key == "NORM" and value == "SyncBN" and path + key not in unread:
            node[key] = "BN" if comm.get_world_size() == 1 else "naiveSyncBN"
