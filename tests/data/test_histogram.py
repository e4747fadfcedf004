"""The histogram of a sample, by hand."""

import logging

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from ocr_panoptic.data.histogram import class_histogram, log_class_histogram


@pytest.fixture
def add(tmp_path, clean_catalog):
    """Register label PNGs with the map 0 -> ignored, 5 -> sky, 7 and 8 -> road, and a class that
    is never seen."""

    def make(*labels: list, **metadata: object) -> str:
        records = []
        for number, values in enumerate(labels):
            path = tmp_path / f"{number}.png"
            Image.fromarray(np.array(values, np.uint8)).save(path)
            records.append({"file_name": f"{number}.jpg", "sem_seg_file_name": str(path)})
        DatasetCatalog.register("town_train", lambda: records)
        metadata = metadata or {"label_map": {0: 255, 5: 0, 7: 1, 8: 1, 9: 2}}
        MetadataCatalog.get("town_train").set(stuff_classes=["sky", "road", "car"], **metadata)
        return "town_train"

    return make


def test_by_hand(add):
    found = class_histogram(add([[5, 5, 7], [8, 7, 0]], [[8, 8]]), num_images=10)
    assert found.pixels.tolist() == [2, 5, 0]
    assert found.images.tolist() == [1, 2, 0]
    assert (found.ignored, found.num_images) == (1, 2)


def test_the_sample_is_spread_over_the_data(add):
    name = add(*([[5] * (10**place)] for place in range(5)))
    assert class_histogram(name, num_images=3).pixels[0] == 10**0 + 10**2 + 10**4
    assert class_histogram(name, num_images=5).pixels[0] == 11111
    assert class_histogram(name, num_images=1).num_images == 1


def test_table(add, caplog):
    with caplog.at_level(logging.DEBUG):
        log_class_histogram(add([[5, 5, 7], [8, 7, 0]], [[8, 8]]))
    lines = [line.split() for line in caplog.text.splitlines()]
    assert ["road", "62.50", "2"] in lines  # 5 of 8 pixels
    assert lines.index(["road", "62.50", "2"]) < lines.index(["sky", "25.00", "1"])
    assert ["car", "0.00", "0"] in lines
    assert ["(ignored)", "12.50"] in lines
    assert "a sample of 2 images" in caplog.text


def test_without_label_map(add):
    """Detectron2's own semantic data sets have training labels, and others are ignored."""
    found = class_histogram(add([[0, 1, 1, 255]], ignore_label=255), num_images=1)
    assert found.pixels.tolist() == [1, 2, 0]
    assert found.ignored == 1


def test_split_without_labels(clean_catalog):
    DatasetCatalog.register("town_test", lambda: [{"file_name": "a.jpg"}])
    MetadataCatalog.get("town_test").set(stuff_classes=["sky"])
    assert log_class_histogram("town_test").num_images == 0


def test_labels_outside_the_map(add, tmp_path):
    with pytest.raises(ValueError, match=rf"{tmp_path / '0.png'}: .*lacks: 77 \(2 pixels\)"):
        class_histogram(add([[77, 77]]), num_images=1)
