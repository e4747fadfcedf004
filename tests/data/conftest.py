"""Fixtures of the data room."""

import os
from pathlib import Path

import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from raw_pets import RawData

from ocr_panoptic.data import register


@pytest.fixture
def raw(tmp_path) -> RawData:
    return RawData(tmp_path / "raw")


@pytest.fixture
def raw_val(tmp_path) -> RawData:
    return RawData(tmp_path / "raw_val")


@pytest.fixture
def clean_catalog(monkeypatch):
    """Forget what a test registers, and what other tests have registered by this package."""
    for name in set(DatasetCatalog.list()) & set(register._registered):
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)
    monkeypatch.setattr(register, "_registered", {})
    before = set(DatasetCatalog.list())
    yield
    for name in set(DatasetCatalog.list()) - before:
        DatasetCatalog.remove(name)
        MetadataCatalog.remove(name)


def _real(folder: str, what: str) -> Path:
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    root = Path(os.getenv("OCR_PANOPTIC_TEST_DATA", default)) / folder
    if not root.is_dir():
        pytest.skip(f"no {what} at {root}; OCR_PANOPTIC_TEST_DATA names their folder")
    return root


@pytest.fixture
def real_data() -> Path:
    """The two images of panopticapi's ``sample_data``."""
    return _real("coco_panoptic_sample", "real COCO images")


@pytest.fixture
def camvid() -> Path:
    """CamVid: {train,val}/{images/*.jpg, labels/*.png}, 11 classes, 11 = void."""
    return _real("camvid", "images of CamVid")
