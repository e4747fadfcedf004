"""The mapper turns raw labels into training labels, and names the file of every fault."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from ocr_panoptic.data.semantic.mapper import SemanticDatasetMapper
from ocr_panoptic.errors import UserError

RAW = np.array([7, 8, 300, 0], np.uint16)  # become 0, 1, 1, 255
MAP = {0: 255, 7: 0, 8: 1, 300: 1}


@pytest.fixture
def cfg(clean_catalog, semantic_cfg):
    DatasetCatalog.register("town_train", list)
    MetadataCatalog.get("town_train").set(label_map=MAP)
    semantic_cfg.DATASETS.TRAIN = ("town_train",)
    semantic_cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 2
    return semantic_cfg


@pytest.fixture
def record(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(RAW[rng.integers(0, 4, (30, 40))]).save(tmp_path / "labels.png")
    return {
        "file_name": str(tmp_path / "a.png"),
        "sem_seg_file_name": str(tmp_path / "labels.png"),
        "dataset_name": "town_train",
    }


def test_image_and_labels(cfg, record):
    before = dict(record)
    sample = SemanticDatasetMapper(cfg, True)(record)
    assert record == before  # the data set's record stays unchanged
    pixels = np.asarray(Image.open(record["file_name"]))
    assert torch.equal(sample["image"], torch.tensor(pixels[..., ::-1].copy()).permute(2, 0, 1))
    raw = np.asarray(Image.open(record["sem_seg_file_name"])).astype(int)
    expected = np.select([raw == 0, raw == 7], [255, 0], 1)
    assert sample["sem_seg"].dtype == torch.int64
    assert np.array_equal(sample["sem_seg"], expected)
    assert (sample["height"], sample["width"]) == (30, 40)
    assert "sem_seg_file_name" not in sample
    cfg.INPUT.FORMAT = "RGB"
    assert torch.equal(SemanticDatasetMapper(cfg, True)(record)["image"], sample["image"].flip(0))


def test_test_labels_only_for_schemes_that_see_the_truth(cfg, record):
    assert "sem_seg" not in SemanticDatasetMapper(cfg, False)(record)
    cfg.INPUT.MIN_SIZE_TEST = 60
    sample = SemanticDatasetMapper(cfg, False, keep_labels=True)(record)
    raw = np.asarray(Image.open(record["sem_seg_file_name"])).repeat(2, 0).repeat(2, 1)
    assert sample["image"].shape == (3, *raw.shape) == (3, 60, 80)
    assert (sample["height"], sample["width"]) == (30, 40), "as in the file"
    assert np.array_equal(sample["sem_seg"] == 255, raw == 0)


def test_split_without_labels(cfg, record):
    del record["sem_seg_file_name"]
    assert "image" in SemanticDatasetMapper(cfg, False)(record)
    with pytest.raises(ValueError, match=r"a\.png: this image has no label file"):
        SemanticDatasetMapper(cfg, True)(record)
    with pytest.raises(ValueError, match=r"a\.png: .* used for a context scheme that needs labels"):
        SemanticDatasetMapper(cfg, False, keep_labels=True)(record)


def test_each_data_set_has_its_map(cfg, record):
    DatasetCatalog.register("other_train", list)
    MetadataCatalog.get("other_train").set(label_map={0: 1, 7: 1, 8: 1, 300: 0})
    cfg.DATASETS.TRAIN = ("town_train", "other_train")
    mapper = SemanticDatasetMapper(cfg, True)
    town, other = mapper(record), mapper({**record, "dataset_name": "other_train"})
    assert town["sem_seg"].unique().tolist() == [0, 1, 255]
    raw = np.asarray(Image.open(record["sem_seg_file_name"]))
    assert np.array_equal(other["sem_seg"], raw != 300)


def test_data_set_without_map(cfg, record):
    """Detectron2's own semantic data sets have training labels and 255 in their files."""
    del record["dataset_name"]
    labels = np.zeros((30, 40), np.uint8)
    labels[0], labels[1] = 1, 255
    Image.fromarray(labels).save(record["sem_seg_file_name"])
    assert np.array_equal(SemanticDatasetMapper(cfg, True)(record)["sem_seg"], labels)
    labels[5, :3], labels[9, 9] = 2, 200
    Image.fromarray(labels).save(record["sem_seg_file_name"])
    with pytest.raises(ValueError, match=r"labels\.png: .*no class: 2 \(3 pixels\), 200 \(1 pix"):
        SemanticDatasetMapper(cfg, True)(record)


LABELS = "sem_seg_file_name"
FAULTS = [
    (lambda r: Path(r["file_name"]).unlink(), "a.png: image not found"),
    (lambda r: os.truncate(r[LABELS], 99), "labels.png: .* broken or truncated"),
    (lambda r: Image.new("L", (30, 40)).save(r[LABELS]), r"labels have 30x40 .*a\.png has 40x30"),
    (lambda r: r.update(width=40, height=31), "image has 40x30 .*expected 40x31"),
]


@pytest.mark.parametrize(("spoil", "message"), FAULTS)
def test_files_that_do_not_fit(cfg, record, spoil, message):
    spoil(record)
    with pytest.raises((FileNotFoundError, UserError), match=message):
        SemanticDatasetMapper(cfg, True)(record)


def test_flip_pairs_come_from_the_training_data(cfg, record):
    cfg.INPUT.RANDOM_FLIP = "horizontal"
    MetadataCatalog.get("town_train").set(flip_pairs=[(0, 1)])
    mapper = SemanticDatasetMapper(cfg, True)
    np.random.seed(0)  # noqa: NPY002, Detectron2's augmentations draw from it
    samples = [mapper(record)["sem_seg"] for _ in range(10)]
    plain = SemanticDatasetMapper(cfg, True)
    plain.augmentations.augs.clear()
    labels = plain(record)["sem_seg"]
    mirrored = torch.tensor([1, 0] + [255] * 254)[labels.flip(1)]
    kinds = {sample.numpy().tobytes() for sample in samples}
    assert kinds == {wanted.numpy().tobytes() for wanted in (labels, mirrored)}


@pytest.mark.parametrize(
    "other", [{"flip_pairs": [(0, 1)]}, {"stuff_classes": ["road", "sky"], "flip_pairs": []}]
)
def test_training_data_with_different_classes(cfg, other):
    MetadataCatalog.get("town_train").set(stuff_classes=["sky", "road"])
    DatasetCatalog.register("people_train", list)
    MetadataCatalog.get("people_train").set(**{"stuff_classes": ["sky", "road"], **other})
    cfg.DATASETS.TRAIN = ("town_train", "people_train")
    key = next(iter(other))
    with pytest.raises(ValueError, match=f"town_train and people_train, but their {key} differ: "):
        SemanticDatasetMapper(cfg, True)
