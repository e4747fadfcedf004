"""Cityscapes and ADE20K for Panoptic-FPN, compared pixel by pixel, and faulty files."""

import json
from pathlib import Path

import numpy as np
import pytest
from cityscapesscripts.helpers.labels import id2label
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from ocr_panoptic.data.data_check import check_data_sets
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.data.panoptic.mapper import PanopticDatasetMapper
from ocr_panoptic.data.published.panoptic import PANOPTIC_RELEASES
from ocr_panoptic.data.published.register import register_published
from ocr_panoptic.evaluation.panoptic_truth import PanopticTruth
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png, read_segment_ids
from ocr_panoptic.formats.labels import read_true_labels
from support import published_trees as trees

EVALUATED = [label for label in id2label.values() if not label.ignoreInEval]
CITYSCAPES = ["cityscapes_panoptic_train", "cityscapes_panoptic_val"]
ADE20K = ["ade20k_panoptic_train", "ade20k_panoptic_val"]
STUFF = [label.id for label in EVALUATED if not label.hasInstances]
THINGS = [label.id for label in EVALUATED if label.hasInstances]


@pytest.fixture
def cityscapes(tmp_path, clean_catalog) -> Path:
    trees.write_cityscapes(tmp_path)
    register_published([], tmp_path)
    return tmp_path / "cityscapes"


@pytest.fixture
def ade20k(tmp_path, clean_catalog) -> Path:
    trees.write_ade20k(tmp_path)
    register_published([], tmp_path)
    return tmp_path / "ADEChallengeData2016"


def shown(ids: np.ndarray, segments: list[tuple[int, int, int]]) -> list[tuple]:
    return sorted((c, crowd, (ids == number).tobytes()) for number, c, crowd in segments)


def of_truth(name: str, image_id: str) -> list[tuple]:
    _, ids, segments = PanopticTruth(MetadataCatalog.get(name))[image_id]
    return shown(ids, [(s["id"], s["category_id"], s["iscrowd"]) for s in segments])


@pytest.mark.slow
@pytest.mark.parametrize("name", CITYSCAPES)
def test_cityscapes_equals_cityscapesscripts(cityscapes, name):
    check_data_sets([name], workers=1)
    path = cityscapes / f"gtFine/{name}.json"
    content = json.loads(path.read_text())
    records = {record["image_id"]: record for record in DatasetCatalog.get(name)}
    assert records.keys() == {annotation["image_id"] for annotation in content["annotations"]}
    for annotation in content["annotations"]:
        record = records[annotation["image_id"]]
        ids = read_panoptic_png(path.with_suffix("") / annotation["file_name"])
        assert np.array_equal(read_segment_ids(record), ids)
        found = {s["id"]: s["iscrowd"] for s in record["segments_info"]}
        assert found == {s["id"]: s["iscrowd"] for s in annotation["segments_info"]}
        segments = [(s["id"], s["category_id"], s["iscrowd"]) for s in annotation["segments_info"]]
        assert of_truth(name, record["image_id"]) == shown(ids, segments) and 1 in found.values()
        assert Path(record["file_name"]).name == f"{record['image_id']}_leftImg8bit.png"
        check_labels(record, ids)
    metadata = MetadataCatalog.get(name)
    categories = {c["id"]: c for c in content["categories"]}
    assert metadata.thing_classes == [categories[number]["name"] for number in THINGS]
    assert metadata.stuff_classes == ["things", *(categories[n]["name"] for n in STUFF)]
    assert metadata.stuff_colors[1:] == [categories[number]["color"] for number in STUFF]


def check_labels(record: dict, ids: np.ndarray) -> None:
    label_ids = np.where(ids >= 1000, ids // 1000, ids)
    expected = np.full(ids.shape, 255)
    for number in THINGS:
        expected[label_ids == number] = 0
    for label, number in enumerate(STUFF, 1):
        expected[label_ids == number] = label
    assert np.array_equal(read_true_labels(record), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ADE20K)
def test_ade20k_is_objects_over_stuff(ade20k, name, caplog):
    check_data_sets([name], workers=1)
    assert "found 2 images, but the release has 20" in caplog.text
    split = {"train": "training", "val": "validation"}[name.rpartition("_")[2]]
    metadata = MetadataCatalog.get(name)
    assert len(metadata.thing_classes) == 100 and len(metadata.stuff_classes) == 51
    assert metadata.thing_classes[:2] == ["bed", "window"]
    same = {"is_train": True, "augmentations": [], "image_format": "BGR"}
    mapper = PanopticDatasetMapper(**same, use_instance_mask=True, num_sem_seg_classes=51)
    assert len(records := DatasetCatalog.get(name)) == 2
    for record in records:
        labels, colors = (
            np.asarray(Image.open(ade20k / kind / split / f"{record['image_id']}.png")).astype(int)
            for kind in ("annotations", "annotations_instance")
        )
        ids = np.where(np.isin(labels, trees.ADE20K_MAPPING), 0, labels)
        for number in (1, 2, 3):
            ids[colors[..., 1] == number] = 1000 + number
        expected = [(label, label - 1, 0) for label in np.unique(ids) if 0 < label < 1000]
        for number in (1, 2, 3):
            category = colors[..., 0][colors[..., 1] == number][0]
            expected.append((1000 + number, trees.ADE20K_MAPPING[category - 1] - 1, 0))
        assert len(expected) == 5  # three things, and two of three kinds of stuff
        assert of_truth(name, record["image_id"]) == shown(ids, expected)
        semantic = read_true_labels(record)
        assert (semantic[ids == 0] == 255).all() and (semantic[ids > 1000] == 0).all()
        assert (semantic[2:5, 100:120] == 255).all()  # the label of a thing, outside all objects
        instances = mapper(record)["instances"]
        masks = [ids == 1000 + number for number in (1, 2, 3)]
        found = {mask.numpy().tobytes() for mask in instances.gt_masks.tensor}
        assert found == {mask.tobytes() for mask in masks}


@pytest.mark.parametrize("name", PANOPTIC_RELEASES)
def test_missing_folders(tmp_path, clean_catalog, name):
    register_published([], tmp_path)
    with pytest.raises(FileNotFoundError, match="not found. Unpack "):
        DatasetCatalog.get(name)


@pytest.mark.slow
def test_files_that_are_not_cityscapes(cityscapes):
    first, second = (cityscapes / "gtFine/train").rglob("*_instanceIds.png")
    Image.fromarray(np.full(trees.SIZE, 255, np.uint8)).save(first)
    second.write_bytes(second.read_bytes()[:90])
    with pytest.raises(DataFaults) as error:
        DatasetCatalog.get(CITYSCAPES[0])
    assert {fault.split(":")[0] for fault in error.value.faults} == {str(first), str(second)}
    assert "found 255, expected Cityscapes label ids. Are these train ids" in str(error.value)


def ade20k_png(path: Path, red: int) -> None:
    Image.new("RGB", trees.SIZE[::-1], (red, 1, 0)).save(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "spoil", "message"),
    [
        ("annotations_instance", lambda p: ade20k_png(p, 0), r"categories \[0\], expected 1..100"),
        ("annotations_instance", lambda p: ade20k_png(p, 101), r"red .*categories \[101\]"),
        (
            "annotations_instance",
            lambda p: Image.new("RGB", (8, 8)).save(p),
            r"expected an RGB PNG of the same size as .*\[64, 128, 3\], found \[8, 8, 3\]",
        ),
        ("annotations", lambda p: p.unlink(), "label image not found"),
        ("annotations", lambda p: Image.new("L", (128, 64), 151).save(p), "found labels that"),
    ],
)
def test_files_that_are_not_ade20k(ade20k, kind, spoil, message):
    spoil(ade20k / kind / "training/ADE_train_00000002.png")
    with pytest.raises(DataFaults, match=f"ADE_train_00000002.*{message}"):
        check_data_sets(ADE20K, workers=1)


def test_server_splits(tmp_path, clean_catalog):
    register_published([], tmp_path)
    city = tmp_path / "cityscapes/leftImg8bit/test/berlin"
    city.mkdir(parents=True)
    (city / "berlin_000000_000019_leftImg8bit.png").touch()
    (record,) = DatasetCatalog.get("cityscapes_panoptic_test")
    path = str(city / "berlin_000000_000019_leftImg8bit.png")
    assert record == {"file_name": path, "image_id": "berlin_000000_000019"}
    info = tmp_path / "coco/annotations/image_info_test-dev2017.json"
    info.parent.mkdir(parents=True)
    image = {"id": 7, "file_name": "000000000007.jpg"}
    info.write_text(json.dumps({"images": [image]}))
    name = "coco_2017_test-dev_panoptic_separated"
    assert DatasetCatalog.get(name) == [
        {"file_name": str(tmp_path / "coco/test2017/000000000007.jpg"), "image_id": 7}
    ]
    trained, ours = map(MetadataCatalog.get, ("coco_2017_train_panoptic_separated", name))
    assert ours.thing_classes == trained.thing_classes
    assert ours.stuff_dataset_id_to_contiguous_id == trained.stuff_dataset_id_to_contiguous_id
    image["file_name"] = "../7.jpg"
    info.write_text(json.dumps({"images": [image]}))
    with pytest.raises(ValueError, match="must be a relative path inside the given folder"):
        DatasetCatalog.get(name)
