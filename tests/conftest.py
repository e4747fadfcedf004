"""Fixtures shared by the rooms."""

import logging
from pathlib import Path

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.structures import BitMasks, Boxes, Instances

from ocr_panoptic.engine import load_config

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def loggers_propagate(monkeypatch):
    """Detectron2's setup_logger ends propagation for the rest of the process, and with it the
    caplog of every test after a run of train_net.py."""
    for name in ("ocr_panoptic", "detectron2", "fvcore"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)


@pytest.fixture
def small_cfg():
    """Factory: the quick ResNet-18 config with the OCR or the plain head, 2 thing classes and 3
    stuff classes, on the CPU, KEY VALUE pairs applied."""

    def make(head: str = "ocr", *opts: object) -> CfgNode:
        name = {"ocr": "panoptic_fpn_ocr_R_18_scenes", "plain": "panoptic_fpn_R_18_scenes"}[head]
        cfg = load_config(str(ROOT / f"configs/quick_schedules/{name}.yaml"), list(opts))
        cfg.MODEL.DEVICE = "cpu"
        cfg.MODEL.ROI_HEADS.NUM_CLASSES = 2
        cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 4
        for norm in (cfg.MODEL.OCR, cfg.MODEL.RESNETS):
            norm.NORM = "BN" if norm.NORM == "SyncBN" else norm.NORM
        return cfg

    return make


@pytest.fixture
def batch():
    """Factory: what the mapper gives for training: random images, one box-shaped thing each,
    semantic labels in vertical stripes with a void border."""

    def make(
        num_images: int = 2, height: int = 64, width: int = 96, num_classes: int = 4
    ) -> list[dict]:
        generator = torch.Generator().manual_seed(0)
        records = []
        for i in range(num_images):
            mask = torch.zeros(1, height, width, dtype=torch.bool)
            mask[:, 16:48, 16 : 56 + 8 * i] = True
            instances = Instances((height, width))
            instances.gt_masks = BitMasks(mask)
            instances.gt_boxes = Boxes(torch.tensor([[16.0, 16.0, 56.0 + 8 * i, 48.0]]))
            instances.gt_classes = torch.tensor([i % 2])
            labels = torch.arange(width) * num_classes // width
            labels = labels.expand(height, width).clone()
            labels[:2] = 255
            image = 64.0 * labels.clamp(max=3) + 30 * torch.randn(
                3, height, width, generator=generator
            )
            records.append(
                dict(image=image, instances=instances, sem_seg=labels, height=height, width=width)
            )
        return records

    return make
