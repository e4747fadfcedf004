"""Registered data in Detectron2's own format, with its loaders and evaluators."""

import json
import pickle

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from panopticapi.utils import rgb2id
from PIL import Image
from pycocotools import mask as mask_util

from ocr_panoptic.data import catalog
from ocr_panoptic.data.catalog import (
    check_files,
    class_counts,
    not_registered,
    register,
    register_again,
    register_data_sets,
    registered_data,
)
from ocr_panoptic.data.data_check import check_data_sets
from ocr_panoptic.data.data_file import PanopticSplit, data_options, read_data_files
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.data.panoptic.source import PanopticSource
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.instance_evaluator import PanopticInstanceEvaluator
from ocr_panoptic.formats.labels import read_true_labels
from support.raw_pets import CAT, DOG, FIRST, SECOND

pytestmark = pytest.mark.usefixtures("clean_catalog")


def test_records(raw):
    raw.checked()
    second, first = DatasetCatalog.get("pets_train")  # by ascending image id
    assert first["file_name"] == str(raw.image("first.jpg"))
    assert second["file_name"] == str(raw.image("more/second.bmp"))
    assert second["pan_seg_file_name"] == str(raw.png("more/second.png"))
    assert class_counts("pets_train") == (2, 3)
    sizes = [(r["image_id"], r["height"], r["width"]) for r in (first, second)]
    assert sizes == [(21, 6, 8), (5, 4, 5)]
    keys = ("id", "category_id", "isthing", "iscrowd")
    segments = [tuple(segment[key] for key in keys) for segment in first["segments_info"]]
    expected = [(70000, 1, False, 0), (3, 2, False, 0), (500, 1, True, 0), (900, 0, True, 1)]
    assert segments == expected
    assert first["annotations"] == [
        {"segment_id": 500, "category_id": 1, "iscrowd": 0},
        {"segment_id": 900, "category_id": 0, "iscrowd": 1},
    ]


def test_images_that_are_only_void_are_left_out(raw, caplog):
    for number in range(100, 107):
        raw.add(number, f"{number}.png", f"{number}.png", np.zeros((3, 3), int), [])
    raw.checked()
    (message,) = caplog.messages
    assert "left out 7 of 9 images because all their pixels are void: 100.png, 101.png" in message
    assert [r["image_id"] for r in DatasetCatalog.get("pets_train")] == [5, 21]
    for key in ("images", "annotations"):
        del raw.content[key][:2]
    with pytest.raises(DataFaults, match="no image has segments, so all pixels are void"):
        raw.checked()


def test_ids_zero_and_texts(raw):
    """Category 0 and textual image ids are accepted; only segment 0 is void."""
    text = json.dumps(raw.content).replace('"category_id": 7', '"category_id": 0')
    text = text.replace('"id": 7, "name"', '"id": 0, "name"')
    for number in (5, 21):
        text = text.replace(f'"image_id": {number},', f'"image_id": "image {number}",')
        text = text.replace(f'"id": {number}, "file', f'"id": "image {number}", "file')
    raw.content = json.loads(text)
    raw.checked()
    first, second = DatasetCatalog.get("pets_train")
    assert (first["image_id"], second["image_id"]) == ("image 21", "image 5")
    label_of = {70000: 1, 3: 2, 500: 0, 900: 0, 0: 255}
    assert np.array_equal(read_true_labels(first), np.vectorize(label_of.get)(FIRST))


@pytest.mark.parametrize("lost", ["images", "panoptic.json", "panoptic"])
def test_missing_files_are_reported_before_reading(raw, lost):
    raw.checked()
    check_files(["pets_train"])
    (raw.folder / lost).rename(raw.folder / "moved")
    with pytest.raises(FileNotFoundError, match=f"Data set pets_train: cannot find .*/raw/{lost}"):
        check_files(["pets_train"])


def test_remote_files_are_not_looked_for():
    DatasetCatalog.register("theirs", lambda: [])
    MetadataCatalog.get("theirs").set(json_file="s3://bucket/a.json")
    check_files(["theirs"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pots_train", r"'pots_train' is not registered.*pots/pots\.yaml"),
        ("coco_2017_val", "'coco_2017_val' cannot be used for Panoptic-FPN"),
    ],
)
def test_class_counts_of_other_data(name, message):
    assert class_counts("coco_2017_val_panoptic_separated") == (80, 54)
    with pytest.raises(ValueError, match=message):
        class_counts(name)


TASKS = ("bbox", "segm")


def test_instances_of_the_png(raw):
    """Masks equal pycocotools'; the crowd is left out of training and ignored by AP."""
    raw.checked()
    truth = PanopticInstanceEvaluator("pets_train", TASKS)
    truth.reset()
    for image_id in (21, 5):
        truth.add_truth(image_id)
    content = truth.gather_truth()
    assert [category["name"] for category in content["categories"]] == ["cat", "dog"]
    kept = ("id", "image_id", "category_id", "iscrowd", "area", "bbox")
    masks = FIRST == 500, FIRST == 900, SECOND == 12
    expected = [(1, 21, DOG, 0, 7, [1, 1, 4, 3]), (2, 21, CAT, 1, 4, [3, 3, 2, 2])]
    expected.append((3, 5, CAT, 0, 4, [0, 2, 2, 2]))
    for found, values, mask in zip(content["annotations"], expected, masks, strict=True):
        assert tuple(found[key] for key in kept) == values
        assert np.array_equal(mask_util.decode(found["segmentation"]), mask)


@pytest.mark.data
def test_real_coco_images(real_data):
    """Each instance has the mask, box and area of its segment; labels equal Detectron2's."""
    sample = real_data / "panoptic_examples.json", real_data / "panoptic_examples"
    source = PanopticSource("sample", PanopticSplit(real_data / "input_images", *sample))
    register("sample", real_data, source, source.metadata())
    check_data_sets(["sample"], workers=1)
    given = json.loads(sample[0].read_text())
    stuff = sorted(c["id"] for c in given["categories"] if not c["isthing"])
    label_of = {c["id"]: 0 for c in given["categories"]} | {c: i for i, c in enumerate(stuff, 1)}
    truth = PanopticInstanceEvaluator("sample", TASKS)
    truth.reset()
    records = {record["image_id"]: record for record in DatasetCatalog.get("sample")}
    for image_id in records:
        truth.add_truth(image_id)
    instances = truth.gather_truth()["annotations"]
    for annotation in given["annotations"]:
        ids = rgb2id(np.asarray(Image.open(sample[1] / annotation["file_name"])))
        segments = [s for s in annotation["segments_info"] if s["category_id"] not in stuff]
        own = [i for i in instances if i["image_id"] == annotation["image_id"]]
        for segment, instance in zip(segments, own, strict=True):
            assert np.array_equal(mask_util.decode(instance["segmentation"]), ids == segment["id"])
            for key in ("area", "bbox", "iscrowd", "category_id"):
                assert instance[key] == segment[key]
        expected = np.full(ids.shape, 255)
        for segment in annotation["segments_info"]:
            expected[ids == segment["id"]] = label_of[segment["category_id"]]
        assert np.array_equal(read_true_labels(records[annotation["image_id"]]), expected)
    assert instances


def test_other_processes_register_the_same_data(raw, monkeypatch):
    """What they are sent has no content of a JSON, and gives the same records."""
    names = [*register_data_sets(raw.described()), "coco_2017_val_panoptic_separated", "theirs"]
    DatasetCatalog.register("theirs", lambda: [{"file_name": "a.jpg"}])
    register_data_sets([], names[1:])
    sent = pickle.dumps(registered_data(names))
    assert b"second.bmp" not in sent
    expected, metadata = DatasetCatalog.get("pets_train"), MetadataCatalog.get("pets_train")
    for theirs in (DatasetCatalog, MetadataCatalog):  # as at the start of another process
        left = {k: v for k, v in theirs.data.items() if k not in names[:2]}
        monkeypatch.setattr(theirs, "data", left)
    monkeypatch.setattr(catalog, "_registered", {})
    register_again(pickle.loads(sent))
    assert DatasetCatalog.get("pets_train") == expected
    assert MetadataCatalog.get("pets_train").as_dict() == metadata.as_dict()
    assert MetadataCatalog.get(names[1]).stuff_classes[0] == "things"
    with pytest.raises(UserError, match="'gone' is not registered.*--import MODULE"):
        register_again(["gone"])


@pytest.mark.parametrize(
    ("name", "hint"),
    [("scenes_train", None), ("coco_2017_val_panoptic_seperated", "coco_2017_val_panoptic_separa")],
)
def test_a_registered_name_is_suggested_if_it_is_near(name, hint):
    message = not_registered(name)
    assert (f"Did you mean {hint}" in message) if hint else ("Did you mean" not in message)


def test_files_that_are_read_already(raw, monkeypatch):
    files = read_data_files(raw.described())
    monkeypatch.setattr("ocr_panoptic.data.data_file.read_data_file", None)
    assert data_options(files)["DATASETS.FILES"] == (str(raw.folder / "pets.yaml"),)
    assert register_data_sets(files) == register_data_sets(files[0]) == ["pets_train"]
