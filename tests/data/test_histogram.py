"""The histogram of a sample, by hand."""

import logging

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from ocr_panoptic.data.histogram import log_class_histogram

MAP = {"label_map": {0: 255, 5: 0, 7: 1, 8: 1, 9: 2}}  # 9, a car, is never seen


@pytest.fixture
def table(tmp_path, clean_catalog, caplog):
    """Factory: the logged rows of a data set of some label PNGs, below what they are of."""

    def log(*labels: list, num_images: int = 100, **metadata: object) -> list[list[str]]:
        records = [{"file_name": "without_labels.jpg"}]
        for number, values in enumerate(labels):
            path = tmp_path / f"{number}.png"
            Image.fromarray(np.array(values, np.uint8)).save(path)
            records.append({"file_name": f"{number}.jpg", "sem_seg_file_name": str(path)})
        DatasetCatalog.register("town_train", lambda: records)
        MetadataCatalog.get("town_train").set(stuff_classes=["sky", "road", "car"], **metadata)
        with caplog.at_level(logging.DEBUG):
            log_class_histogram("town_train", num_images)
        title, _, _, *rows = caplog.messages[-1].splitlines()
        return [title.split(" of ")[1].split(), *map(str.split, rows)]

    return log


@pytest.mark.parametrize(
    ("labels", "metadata", "expected"),
    [
        (
            ([[5, 5, 7], [8, 7, 0]], [[8, 8]]),
            MAP,
            ["2 images:", "road 62.50 2", "sky 25.00 1", "car 0.00 0", "(ignored) 12.50"],
        ),
        # Training labels, as Detectron2's own data sets have them; others are ignored.
        (
            ([[0, 1, 1, 255]],),
            {},
            ["1 images:", "road 50.00 1", "sky 25.00 1", "car 0.00 0", "(ignored) 25.00"],
        ),
        ((), {}, ["0 images:", "sky 0.00 0", "road 0.00 0", "car 0.00 0", "(ignored) 0.00"]),
    ],
)
def test_by_hand(table, labels, metadata, expected):
    assert [" ".join(row) for row in table(*labels, **metadata)] == expected


def test_the_sample_is_spread_over_the_data(table):
    """The first, the third and the fifth image are looked at."""
    found = table([[5]], [[7]], [[5]], [[7]], [[5]], num_images=3, **MAP)
    assert [" ".join(row) for row in found[:2]] == ["3 images:", "sky 100.00 3"]


def test_labels_outside_the_map(table, tmp_path):
    with pytest.raises(ValueError, match=rf"{tmp_path / '0.png'}: .*lacks: 77 \(2 pixels\)"):
        table([[77, 77]], **MAP)
