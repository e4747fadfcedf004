"""Own images and label PNGs, from the command line to records, and every fault on the way."""

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image
from scripts import load_script

from ocr_panoptic.data import (
    DataFaults,
    SemanticSplit,
    prepare_semantic,
    register_prepared,
    semantic_class_count,
)

CLASSES = "classes: [{name: sky, labels: [3]}, {name: road, labels: [7, 8]}]\nignore: [0]\n"


class RawLabels:
    """Two images of one split and their label PNGs, which tests may spoil."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.write("a.jpg", "a.png", [[3, 3, 7, 0], [7, 8, 8, 0]])
        self.write("more/b.bmp", "more/b.png", [[3], [3], [3]])

    def write(self, image: str, label_png: str, labels: list) -> None:
        labels = np.array(labels, np.uint8)
        for folder, name in (("images", image), ("labels", label_png)):
            (self.folder / folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", labels.shape[::-1]).save(self.folder / "images" / image)
        Image.fromarray(labels).save(self.folder / "labels" / label_png)

    @property
    def split(self) -> SemanticSplit:
        return SemanticSplit(self.folder / "images", self.folder / "labels")


@pytest.fixture
def raw(tmp_path) -> RawLabels:
    return RawLabels(tmp_path / "raw")


@pytest.fixture
def class_file(tmp_path) -> Path:
    path = tmp_path / "classes.yaml"
    path.write_text(CLASSES)
    return path


def prepare(raw, class_file, root):
    return prepare_semantic("town", class_file, {"train": raw.split}, root / "town", workers=1)


def faults_of(raw, class_file, root) -> list[str]:
    with pytest.raises(DataFaults) as error:
        prepare(raw, class_file, root)
    assert not (root / "town" / "dataset.json").exists()
    return error.value.faults


def test_from_files_to_records(raw, class_file, tmp_path, clean_catalog):
    root = tmp_path / "datasets"
    assert prepare(raw, class_file, root) == root / "town" / "dataset.json"
    names = sorted(p.name for p in (root / "town").iterdir())
    assert names == [".preparation", "dataset.json"]  # nothing is copied
    assert register_prepared(root) == ["town_train"]
    assert register_prepared(root) == ["town_train"]  # harmless
    assert semantic_class_count("town_train") == 2
    metadata = MetadataCatalog.get("town_train")
    assert metadata.stuff_classes == ["sky", "road"]
    assert metadata.label_map == {3: 0, 7: 1, 8: 1, 0: 255}
    assert (metadata.evaluator_type, metadata.ignore_label) == ("sem_seg", 255)
    assert DatasetCatalog.get("town_train") == [
        {
            "file_name": str(raw.folder / "images" / image),
            "sem_seg_file_name": str(raw.folder / "labels" / label_png),
            "dataset_name": "town_train",
        }
        for image, label_png in (("a.jpg", "a.png"), ("more/b.bmp", "more/b.png"))
    ]


def test_folder_can_be_moved(class_file, tmp_path, clean_catalog):
    raw = RawLabels(tmp_path / "datasets/town/raw")
    prepare(raw, class_file, tmp_path / "datasets")
    (tmp_path / "datasets").rename(tmp_path / "moved")
    register_prepared(tmp_path / "moved")
    for record in DatasetCatalog.get("town_train"):
        assert Path(record["file_name"]).is_file()
        assert Path(record["sem_seg_file_name"]).is_file()


def test_repeating_and_processes_change_nothing(raw, class_file, tmp_path):
    manifest = prepare(raw, class_file, tmp_path)
    once = manifest.read_bytes()
    prepare_semantic("town", class_file, {"train": raw.split}, tmp_path / "town", workers=2)
    assert manifest.read_bytes() == once


def test_labels_outside_the_map(raw, class_file, tmp_path):
    raw.write("a.jpg", "a.png", [[3, 9, 9, 0], [7, 8, 200, 0]])
    (fault,) = faults_of(raw, class_file, tmp_path)
    assert str(raw.folder / "labels/a.png") in fault
    assert "9 (2 pixels), 200 (1 pixels)" in fault


def test_all_faults_are_reported(raw, class_file, tmp_path):
    raw.write("c.jpg", "c.png", [[3, 3]])
    Image.new("L", (3, 1)).save(raw.folder / "labels/c.png")
    (raw.folder / "images/a.jpg").write_bytes(b"no image")
    broken = raw.folder / "labels/more/b.png"
    broken.write_bytes(broken.read_bytes()[:40])
    faults = faults_of(raw, class_file, tmp_path)
    assert len(faults) == 3
    assert f"{raw.folder / 'images/a.jpg'}: the image is broken or truncated" in faults[0]
    assert "c.png: the label PNG has 3x1 pixels, the image" in faults[1]
    assert f"{broken}: label PNG is broken or truncated" in faults[2]


def test_missing_label(raw, class_file, tmp_path):
    (raw.folder / "labels/a.png").unlink()
    (fault,) = faults_of(raw, class_file, tmp_path)
    assert fault == f"{raw.folder / 'images/a.jpg'}: no label PNG {raw.folder / 'labels/a.png'}."


@pytest.mark.parametrize("name", [b"\x1b[31m.jpg", b"\xff.jpg", b"a\nb.jpg"])
def test_names_that_no_terminal_shows(raw, class_file, tmp_path, name):
    (raw.folder / "images" / os.fsdecode(name)).write_bytes(b"")
    (fault,) = faults_of(raw, class_file, tmp_path)
    assert fault.endswith(": control characters, or bytes that are no UTF-8. Rename it.")


def test_a_link_to_a_folder_above(raw, class_file, tmp_path):
    for folder in ("images", "labels"):
        (raw.folder / folder / "more/up").symlink_to(raw.folder / folder)
    (fault,) = faults_of(raw, class_file, tmp_path)
    assert fault == f"{raw.folder / 'images/more/up'}: is a link to a folder that it lies in."


def test_colour_labels(raw, class_file, tmp_path):
    Image.new("RGB", (4, 2)).save(raw.folder / "labels/a.png")
    (fault,) = faults_of(raw, class_file, tmp_path)
    assert "expected one channel of labels" in fault


def test_image_turned_by_its_exif_data(raw, class_file, tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    Image.new("RGB", (4, 2)).save(raw.folder / "images/a.jpg", exif=exif)
    (fault,) = faults_of(raw, class_file, tmp_path)
    assert "2x4 once turned as its EXIF orientation 6 says" in fault


def test_faults_of_all_splits(raw, class_file, tmp_path):
    other = RawLabels(tmp_path / "val")
    for data in (raw, other):
        data.write("a.jpg", "a.png", [[1]])
    splits = {"train": raw.split, "val": other.split}
    with pytest.raises(DataFaults) as error:
        prepare_semantic("town", class_file, splits, tmp_path / "town", workers=1)
    assert len(error.value.faults) == 2


def test_warnings(raw, class_file, tmp_path, caplog):
    raw.write("a.jpg", "a.png", [[0, 0]])
    with caplog.at_level(logging.WARNING):
        prepare(raw, class_file, tmp_path)
    assert "train: no image shows road." in caplog.text
    assert "train: 1 of 2 images hold nothing but ignored pixels." in caplog.text


def test_another_manifest_is_not_written_over(raw, class_file, tmp_path):
    (tmp_path / "town").mkdir()
    path = tmp_path / "town/dataset.json"
    path.write_text('{"format": "ocr_panoptic.prepared"}')
    with pytest.raises(ValueError, match=f"{path}: would be written over"):
        prepare(raw, class_file, tmp_path)
    assert path.read_text() == '{"format": "ocr_panoptic.prepared"}'


def test_an_interrupted_repetition_changes_nothing(raw, class_file, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    path = prepare(raw, class_file, tmp_path)
    before = path.read_bytes()
    assert json.loads(before)["complete"] is True
    class_file.write_text(CLASSES.replace("sky", "water"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.replace", interrupt)
        prepare(raw, class_file, tmp_path)
    assert path.read_bytes() == before


def test_a_manifest_of_an_earlier_version(raw, class_file, tmp_path, clean_catalog):
    """It is used: nothing was written but the manifest, whole or not at all. An unfinished one,
    which no version writes, is not."""
    path = prepare(raw, class_file, tmp_path)
    content = json.loads(path.read_text())
    del content["complete"]
    path.write_text(json.dumps(content))
    assert register_prepared(tmp_path) == ["town_train"]
    path.write_text(json.dumps({**content, "complete": False}))
    with pytest.raises(ValueError, match="the preparation of town has not come to its end"):
        register_prepared(tmp_path)


def test_a_manifest_of_another_version(raw, class_file, tmp_path, clean_catalog):
    path = prepare(raw, class_file, tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(ValueError, match=r"version is 2, expected 1.*prepare_semantic\.py again"):
        register_prepared(tmp_path)


def test_class_count_of_other_data(clean_catalog):
    with pytest.raises(ValueError, match="'nowhere_train' is not registered"):
        semantic_class_count("nowhere_train")
    DatasetCatalog.register("boxes_train", list)
    with pytest.raises(ValueError, match="'boxes_train' has no semantic classes"):
        semantic_class_count("boxes_train")


def run(*arguments: object) -> None:
    load_script("datasets/prepare_semantic.py").main([*map(str, arguments)])


def test_command(raw, class_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    options = ("--name", "town", "--classes", class_file, "--workers", 1)
    options += ("--train", raw.split.images, raw.split.labels)
    run(*options)
    assert "Data sets: town_train" in capsys.readouterr().out
    assert (tmp_path / "town/dataset.json").is_file()
    raw.write("a.jpg", "a.png", [[1]])
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "other"))
    with pytest.raises(DataFaults, match="1 fault in the data"):
        run(*options)
    assert not (tmp_path / "other/town/dataset.json").exists()


@pytest.mark.slow
@pytest.mark.data
def test_camvid(camvid, tmp_path, clean_catalog, monkeypatch, caplog):
    """The command on real data; the class file is the one that a user would write."""
    (tmp_path / "classes.yaml").write_text(
        "classes: [sky, building, pole, road, pavement, tree, sign, fence, car, pedestrian, "
        "bicyclist]\nignore: 11\n"
    )
    options = ("--name", "camvid", "--classes", tmp_path / "classes.yaml", "--workers", 1)
    for split in ("train", "val"):
        options += (f"--{split}", camvid / split / "images", camvid / split / "labels")
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    run(*options)
    assert not caplog.records  # no warning: each class occurs in both splits
    assert register_prepared(tmp_path) == ["camvid_train", "camvid_val"]
    assert [len(DatasetCatalog.get(f"camvid_{split}")) for split in ("train", "val")] == [367, 101]
    assert semantic_class_count("camvid_val") == 11
