"""Fixtures for the tests of data."""

import os
from pathlib import Path

import pytest
from detectron2.config import get_cfg

from ocr_panoptic import add_ocr_config
from support.raw_pets import RawData


@pytest.fixture
def raw(tmp_path) -> RawData:
    return RawData(tmp_path / "raw")


@pytest.fixture
def raw_val(tmp_path) -> RawData:
    return RawData(tmp_path / "raw_val")


@pytest.fixture
def semantic_cfg():
    """Return a config that leaves images unchanged."""
    cfg = get_cfg()
    add_ocr_config(cfg)
    cfg.INPUT.MIN_SIZE_TRAIN, cfg.INPUT.MIN_SIZE_TEST = (0,), 0
    cfg.INPUT.RANDOM_FLIP = "none"
    return cfg


@pytest.fixture
def real_data() -> Path:
    """Return the folder with the two images of panopticapi's ``sample_data``."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    root = Path(os.getenv("OCR_PANOPTIC_TEST_DATA", default)) / "coco_panoptic_sample"
    if not root.is_dir():
        pytest.skip(f"no real COCO images at {root}; OCR_PANOPTIC_TEST_DATA names their folder")
    return root
