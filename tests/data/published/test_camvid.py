"""CamVid's instances, worked out by hand, both layouts, and registered data sets."""

from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from ocr_panoptic.data.catalog import register_data_sets
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from prepare_camvid import instances_from_labels, prepare_camvid

SKY, ROAD, CAR, PEDESTRIAN, VOID = 0, 3, 8, 9, 11
NAME = "0001TP_006690.png"


def street() -> np.ndarray:
    """Return labels of 60 x 96 pixels, in which an instance needs 3.3 pixels."""
    labels = np.full((60, 96), ROAD, np.uint8)
    labels[:20] = SKY
    labels[58:] = VOID
    labels[30:40, 10:20] = CAR
    labels[40:45, 20:25] = CAR  # 8-connected with the car before
    labels[30:40, 40:50] = CAR
    labels[50, 60:63] = CAR  # two specks
    labels[55, 70] = CAR
    labels[50, 80:84] = PEDESTRIAN
    return labels


def test_segments_by_hand():
    ids, segments = instances_from_labels(street())
    found = [(s["category_id"] - 1, s["iscrowd"], s["area"], s["bbox"]) for s in segments]
    road = 38 * 96 - 125 - 100 - 4 - 4
    assert found == [
        (SKY, 0, 20 * 96, [0, 0, 96, 20]),
        (ROAD, 0, road, [0, 20, 96, 38]),
        (CAR, 0, 125, [10, 30, 15, 15]),
        (CAR, 0, 100, [40, 30, 10, 10]),
        (CAR, 1, 4, [60, 50, 11, 6]),
        (PEDESTRIAN, 0, 4, [80, 50, 4, 1]),
    ]
    assert [s["id"] for s in segments] == [1, 2, 3, 4, 5, 6]
    assert (ids[58:] == 0).all() and ids[50, 61] == ids[55, 70] == 5


def write(root: Path, layout: tuple[str, str], *splits: str) -> Path:
    for split in splits:
        for folder, content in zip(layout, (np.zeros((60, 96, 3), np.uint8), street())):
            path = root / folder.format(split) / NAME
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(content).save(path)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("layout", [("{}/images", "{}/labels"), ("{}", "{}annot")])
def test_both_data_sets(tmp_path, clean_catalog, layout):
    source = write(tmp_path / "source", layout, "train", "val", "test")
    prepare_camvid(source, tmp_path / "data", workers=1)
    prepare_camvid(source, tmp_path / "data", workers=1)  # a second run is harmless
    for name in ("camvid", "camvid_panoptic"):
        names = register_data_sets([tmp_path / f"data/{name}/{name}.yaml"])
        assert names == [f"{name}_{split}" for split in ("test", "train", "val")]

    (record,) = DatasetCatalog.get("camvid_val")
    assert record["sem_seg_file_name"] == str(source / layout[1].format("val") / NAME)
    metadata = MetadataCatalog.get("camvid_val")
    assert metadata.label_map == {**{label: label for label in range(11)}, VOID: 255}

    (record,) = DatasetCatalog.get("camvid_panoptic_test")
    metadata = MetadataCatalog.get("camvid_panoptic_test")
    assert metadata.thing_classes == ["car", "pedestrian", "bicyclist"]
    assert [s["iscrowd"] for s in record["segments_info"] if s["isthing"]] == [0, 0, 1, 0]
    ids = read_panoptic_png(record["pan_seg_file_name"])
    assert np.array_equal(ids, instances_from_labels(street())[0])


def test_faults(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected the folders train/images and"):
        prepare_camvid(tmp_path, tmp_path / "data")
    source = write(tmp_path / "source", ("{}/images", "{}/labels"), "train", "val")
    Image.fromarray(np.full((60, 96), 12, np.uint8)).save(source / "val/labels" / NAME)
    with pytest.raises(DataFaults, match="belong to no class: 12"):
        prepare_camvid(source, tmp_path / "data", workers=1)
    assert not list((tmp_path / "data").rglob("*.yaml"))
