"""The labels and categories in the results."""

import pytest
from detectron2.data import Metadata

from ocr_panoptic.data.panoptic.annotations import panoptic_metadata, parse_categories
from ocr_panoptic.engine.class_names import classes_of

CATEGORIES = [
    {"id": 300, "name": "sky", "isthing": 0, "color": [1, 2, 3]},
    {"id": 7, "name": "ball", "isthing": 1, "color": [4, 5, 6]},
    {"id": 9, "name": "grass", "isthing": 0, "color": [7, 8, 9]},
]


def panoptic(categories: list[dict]) -> Metadata:
    return Metadata(name="data", **panoptic_metadata(parse_categories(categories, "x.json")))


def test_panoptic():
    classes = classes_of(panoptic(CATEGORIES), "dataset")
    assert classes.names == ["things", "grass", "sky"]
    assert classes.labels.tolist() == [0, 9, 300] and classes.labels.dtype == "uint16"
    assert classes.categories == sorted(CATEGORIES, key=lambda category: category["id"])
    assert (classes.thing_ids, classes.stuff_ids) == ([7], [0, 9, 300])
    assert classes_of(panoptic(CATEGORIES), "train").labels.tolist() == [0, 1, 2]


def test_a_category_0_leaves_no_label_for_things():
    metadata = panoptic([{**CATEGORIES[0], "id": 0}, *CATEGORIES[1:]])
    with pytest.raises(ValueError, match=r"\[0, 7, 9\].*--labels train"):
        classes_of(metadata, "dataset")
    assert classes_of(metadata, "train").stuff_ids == [-1, 0, 9]


def test_semantic():
    metadata = Metadata(
        name="data",
        stuff_classes=["road", "car"],
        stuff_colors=[[1, 1, 1], [2, 2, 2]],
        label_map={7: 0, 26: 1, 27: 1, 0: 255},
    )
    assert classes_of(metadata, "dataset").labels.tolist() == [7, 26]
    classes = classes_of(metadata, "train")
    assert classes.labels.tolist() == [0, 1] and classes.categories == []
