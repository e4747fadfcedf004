"""From the command line to a checked config."""

import argparse
import difflib
import logging
import os

import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.engine import default_setup
from detectron2.utils import comm
from detectron2.utils.logger import setup_logger

from ocr_panoptic.config import is_semantic
from ocr_panoptic.data import (
    class_counts,
    register_prepared,
    register_semantic_datasets,
    semantic_class_count,
)

from .config_files import load_config


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
    _resolve_device(cfg)
    _resolve_norm(cfg)


def setup(args: argparse.Namespace) -> CfgNode:
    """
    The config of a run: :func:`load_config`, :func:`complete_config`, and Detectron2's
    ``default_setup`` (logging, seed, a copy of the config in OUTPUT_DIR). The copy names no
    device and norm of this machine unless they were asked for, so that it serves on another.

    Args:
        args: of Detectron2's ``default_argument_parser``, and perhaps ``deterministic``

    Raises:
        FileNotFoundError, ValueError: as those two; ValueError also where an evaluation, or a
            training, has no data set, and for ``deterministic`` without a seed.
    """
    written = load_config(args.config_file, args.opts or [])
    if getattr(args, "deterministic", False):
        _make_deterministic(written)
    split = "TEST" if args.eval_only else "TRAIN"
    if not written.DATASETS[split]:
        purpose = "evaluate on (--eval-only)" if args.eval_only else "train on"
        raise ValueError(
            f"DATASETS.{split} is empty, so there is nothing to {purpose}. "
            f"Name a data set: DATASETS.{split} \"('NAME',)\"."
        )
    _complete_from_data(written, training=not args.eval_only)
    cfg = written.clone()
    _resolve_device(cfg)
    _resolve_norm(cfg)
    written.freeze()
    default_setup(written, args)
    cfg.freeze()
    setup_logger(cfg.OUTPUT_DIR, distributed_rank=comm.get_rank(), name="ocr_panoptic")
    logging.getLogger(__name__).info(
        "MODEL.DEVICE is %s (torch sees %d GPU(s)); norm of the backbone %s, of the OCR head %s",
        cfg.MODEL.DEVICE,
        torch.cuda.device_count(),
        (cfg.MODEL.TIMM if "timm" in cfg.MODEL.BACKBONE.NAME else cfg.MODEL.RESNETS).NORM,
        cfg.MODEL.OCR.NORM or "none",
    )
    return cfg


def _make_deterministic(cfg: CfgNode) -> None:
    """PyTorch's deterministic algorithms; it warns of an operation that has none (the gradient of
    cross-entropy over images on a GPU is one)."""
    if cfg.SEED < 0:
        raise ValueError(f"--deterministic needs a seed, but SEED is {cfg.SEED}: set SEED 0, say.")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
    torch.use_deterministic_algorithms(True, warn_only=True)
    cfg.CUDNN_BENCHMARK = False


def check_solver(cfg: CfgNode) -> None:
    """
    Check what training alone needs.

    Args:
        cfg: scaled to the number of processes (SOLVER.REFERENCE_WORLD_SIZE), device resolved.

    Raises:
        ValueError: if the batch cannot be dealt out evenly, or the device has no mixed precision.
    """
    processes, steps = comm.get_world_size(), cfg.SOLVER.ACCUMULATION_STEPS
    batch = cfg.SOLVER.IMS_PER_BATCH
    if steps < 1 or batch < 1 or batch % (processes * steps):
        raise ValueError(
            f"SOLVER.IMS_PER_BATCH is {batch}, which {processes} process(es) times "
            f"SOLVER.ACCUMULATION_STEPS {steps} do not divide. Each part of a batch needs the "
            "same number of images, at least 1."
        )
    if cfg.SOLVER.AMP.ENABLED and torch.device(cfg.MODEL.DEVICE).type not in ("cuda", "cpu"):
        raise ValueError(
            "SOLVER.AMP.ENABLED is True, but mixed precision needs a CUDA GPU (float16) or a CPU "
            f"(bfloat16) and MODEL.DEVICE is {cfg.MODEL.DEVICE}. Set SOLVER.AMP.ENABLED False."
        )


def _complete_from_data(cfg: CfgNode, training: bool) -> None:
    prepared = register_prepared()
    register_semantic_datasets()
    names = [*(cfg.DATASETS.TRAIN if training else ()), *cfg.DATASETS.TEST]
    for name in names:
        _check_registered(cfg, name, prepared)
    panoptic = cfg.MODEL.META_ARCHITECTURE == "PanopticFPN"
    holds_masks = set(prepared) & set(cfg.DATASETS.TRAIN)
    if training and panoptic and holds_masks and cfg.INPUT.MASK_FORMAT != "bitmask":
        raise ValueError(
            f"INPUT.MASK_FORMAT is {cfg.INPUT.MASK_FORMAT}, but prepared data hold masks, not "
            "polygons. Set it to bitmask, as configs/Custom-PanopticSegmentation does."
        )
    if panoptic:
        for name in names:
            _match_classes(cfg, name)
    if is_semantic(cfg):
        for name in names:
            _match_count(
                cfg.MODEL.SEM_SEG_HEAD,
                "MODEL.SEM_SEG_HEAD.NUM_CLASSES",
                semantic_class_count(name),
                f"{name} has %d classes",
            )


def _check_registered(cfg: CfgNode, name: str, prepared: list[str]) -> None:
    registered = DatasetCatalog.list()
    if name in registered:
        return
    split = "TRAIN" if name in cfg.DATASETS.TRAIN else "TEST"
    close = difflib.get_close_matches(name, registered, n=5)
    there = f"similar names: {', '.join(close)}" if close else f"prepared: {prepared or 'none'}"
    raise ValueError(
        f"DATASETS.{split} names {name}, which is not registered ({there}). "
        "Prepare your data with datasets/prepare_panoptic.py or prepare_semantic.py, and check "
        f"that DETECTRON2_DATASETS={os.environ.get('DETECTRON2_DATASETS', 'datasets')} "
        "is the folder that holds them."
    )


def _match_classes(cfg: CfgNode, dataset: str) -> None:
    """Take the class counts from a panoptic data set, or compare with it where they are set."""
    metadata = MetadataCatalog.get(dataset)
    if metadata.get("evaluator_type") != "coco_panoptic_seg" or not metadata.get("sem_seg_root"):
        raise ValueError(
            f"{dataset} is not a data set that Panoptic-FPN can be trained on: it needs instances "
            "and a semantic segmentation with label 0 for things. COCO has it under the name "
            "coco_2017_train_panoptic_separated; datasets/prepare_panoptic.py makes it from "
            "your own data."
        )
    things, semantic = class_counts(dataset)
    head = cfg.MODEL.SEM_SEG_HEAD
    _match_count(
        cfg.MODEL.ROI_HEADS,
        "MODEL.ROI_HEADS.NUM_CLASSES",
        things,
        f"{dataset} has %d (thing classes)",
    )
    _match_count(
        head, "MODEL.SEM_SEG_HEAD.NUM_CLASSES", semantic, f"{dataset} has %d (stuff classes + 1)"
    )


def _match_count(node: CfgNode, key: str, count: int, found: str) -> None:
    if node.NUM_CLASSES == 0:
        node.NUM_CLASSES = count
    elif count != node.NUM_CLASSES:
        raise ValueError(
            f"{key} is {node.NUM_CLASSES}, but {found % count}. "
            f"Set it to {count}, or to 0 to take it from the data."
        )


def _resolve_device(cfg: CfgNode) -> None:
    if cfg.MODEL.DEVICE == "auto":
        cfg.MODEL.DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    if cfg.MODEL.DEVICE.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"MODEL.DEVICE is {cfg.MODEL.DEVICE}, but torch sees no GPU. "
            "Set it to auto to use what is there, or to cpu."
        )


def _resolve_norm(node: CfgNode, can_sync: bool | None = None) -> None:
    """Every SyncBN becomes BN unless several GPU processes train: PyTorch's SyncBatchNorm does
    not train without them. Parameters have the same names in both."""
    if can_sync is None:
        can_sync = comm.get_world_size() > 1 and node.MODEL.DEVICE.startswith("cuda")
    for key, value in node.items():
        if isinstance(value, CfgNode):
            _resolve_norm(value, can_sync)
        elif key == "NORM" and value == "SyncBN" and not can_sync:
            node[key] = "BN"
