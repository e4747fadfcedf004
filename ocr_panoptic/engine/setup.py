"""From the command line to a checked config."""

import argparse
import difflib
import logging
import os
import re

import torch
import yaml
from detectron2.config import CfgNode, get_cfg
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.engine import default_setup
from detectron2.utils import comm
from detectron2.utils.logger import setup_logger

from ocr_panoptic.config import add_ocr_config
from ocr_panoptic.data import (
    class_counts,
    register_prepared,
    register_semantic_datasets,
    semantic_class_count,
)


def load_config(config_file: str, opts: list[str]) -> CfgNode:
    """
    Read a config file and the overrides of the command line.

    Args:
        config_file: YAML file; "" for the defaults.
        opts: KEY VALUE KEY VALUE ...

    Returns:
        the config, not frozen, exactly as written (see :func:`complete_config`)

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for an unknown key, a value of the wrong type, or a missing value.
    """
    cfg = get_cfg()
    add_ocr_config(cfg)
    if config_file and "://" not in config_file and not os.path.isfile(config_file):
        raise FileNotFoundError(f"--config-file {config_file} does not exist")
    if len(opts) % 2:
        raise ValueError(f"Overrides come as KEY VALUE pairs, but these are {len(opts)}: {opts}")
    source = config_file
    try:
        if config_file:
            cfg.merge_from_file(config_file, allow_unsafe=False)
        source = "the command line"
        cfg.merge_from_list(opts)
    except (KeyError, AssertionError, ValueError) as e:  # all three from yacs
        unknown = re.search(r"Non-existent (?:config )?key: ([\w.]+)", str(e))
        if not unknown:
            raise ValueError(f"Bad config value in {source}: {e}") from e
        close = difflib.get_close_matches(unknown[1], _keys(cfg), n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ValueError(f"Unknown config key {unknown[1]} in {source}.{hint}") from e
    except yaml.YAMLError as e:
        raise ValueError(f"{source} is not valid YAML: {e}") from e
    return cfg


def complete_config(cfg: CfgNode) -> None:
    """
    Fill in what follows from the data and the machine, and check what can be known before
    anything is built: data sets, class counts, mask format, device, norms. Changes ``cfg``.

    Raises:
        ValueError: naming key, found and expected value.
    """
    prepared = register_prepared()
    register_semantic_datasets()
    names = DatasetCatalog.list()
    for split in ("TRAIN", "TEST"):
        for name in cfg.DATASETS[split]:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=5)
                raise ValueError(
                    f"DATASETS.{split} names {name}, which is not registered"
                    + (f" (there are: {', '.join(close)})" if close else "")
                    + ". Prepare your data with datasets/prepare_panoptic.py, and check that "
                    f"DETECTRON2_DATASETS={os.environ.get('DETECTRON2_DATASETS', 'datasets')} "
                    "is the folder that holds them."
                )
    panoptic = cfg.MODEL.META_ARCHITECTURE == "PanopticFPN"
    if panoptic and cfg.INPUT.MASK_FORMAT != "bitmask" and set(prepared) & set(cfg.DATASETS.TRAIN):
        raise ValueError(
            f"INPUT.MASK_FORMAT is {cfg.INPUT.MASK_FORMAT}, but prepared data hold masks, not "
            "polygons. Set it to bitmask, as configs/Custom-PanopticSegmentation does."
        )
    if panoptic:
        for name in (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST):
            _match_classes(cfg, name)
    if cfg.MODEL.META_ARCHITECTURE == "OCRSemanticSegmentor":
        for name in (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST):
            _match_count(
                cfg.MODEL.SEM_SEG_HEAD,
                "MODEL.SEM_SEG_HEAD.NUM_CLASSES",
                semantic_class_count(name),
                f"{name} has %d classes",
            )
    _check_batch(cfg)
    _resolve_device(cfg)
    _resolve_norm(cfg)


def setup(args: argparse.Namespace) -> CfgNode:
    """
    The config of a run: :func:`load_config`, :func:`complete_config`, and Detectron2's
    ``default_setup`` (logging, seed, a copy of the config in OUTPUT_DIR).

    Args:
        args: of Detectron2's ``default_argument_parser``
    """
    cfg = load_config(args.config_file, args.opts or [])
    complete_config(cfg)
    cfg.freeze()
    default_setup(cfg, args)
    setup_logger(cfg.OUTPUT_DIR, distributed_rank=comm.get_rank(), name="ocr_panoptic")
    logging.getLogger(__name__).info(
        "MODEL.DEVICE is %s (torch sees %d GPU(s)); the OCR head's norm is %s",
        cfg.MODEL.DEVICE,
        torch.cuda.device_count(),
        cfg.MODEL.OCR.NORM or "none",
    )
    return cfg


def _keys(cfg: CfgNode, prefix: str = "") -> list[str]:
    keys = []
    for key, value in cfg.items():
        keys.append(prefix + key)
        if isinstance(value, CfgNode):
            keys += _keys(value, f"{prefix}{key}.")
    return keys


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
            f"Set it to {count}, or to 0 to take it from the training data."
        )


def _check_batch(cfg: CfgNode) -> None:
    parts = comm.get_world_size() * cfg.SOLVER.ACCUMULATION_STEPS
    if cfg.SOLVER.ACCUMULATION_STEPS < 1 or cfg.SOLVER.IMS_PER_BATCH % parts:
        raise ValueError(
            f"SOLVER.IMS_PER_BATCH is {cfg.SOLVER.IMS_PER_BATCH}, which {comm.get_world_size()} "
            f"process(es) times SOLVER.ACCUMULATION_STEPS {cfg.SOLVER.ACCUMULATION_STEPS} do not "
            "divide. Each part of a batch needs the same number of images, at least 1."
        )


def _resolve_device(cfg: CfgNode) -> None:
    if cfg.MODEL.DEVICE.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"MODEL.DEVICE is {cfg.MODEL.DEVICE}, but torch sees no GPU. "
            "Leave the key out to use what is there, or set it to cpu."
        )
    if cfg.SOLVER.AMP.ENABLED and not cfg.MODEL.DEVICE.startswith("cuda"):
        raise ValueError(
            "SOLVER.AMP.ENABLED is True, but Detectron2's mixed precision needs a GPU and "
            f"MODEL.DEVICE is {cfg.MODEL.DEVICE}. Set SOLVER.AMP.ENABLED False."
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
