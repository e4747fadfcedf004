"""COCO's downloaded files, in miniature, compared with Detectron2's rule and loader."""

import json
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog, get_detection_dataset_dicts
from detectron2.data.datasets import load_coco_json
from detectron2.data.datasets.builtin_meta import COCO_CATEGORIES, _get_builtin_metadata
from PIL import Image

from ocr_panoptic.data.catalog import check_files
from ocr_panoptic.data.data_check import check_data_sets
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.data.published.coco import COCO_PANOPTIC
from ocr_panoptic.data.published.register import register_published
from ocr_panoptic.formats.coco_panoptic import write_panoptic_png
from ocr_panoptic.formats.labels import read_true_labels
from support.faults import faults_of

pytestmark = pytest.mark.usefixtures("clean_catalog")

# things -> 0, stuff in the order of COCO_CATEGORIES -> 1..53
STUFF = [category["id"] for category in COCO_CATEGORIES if not category["isthing"]]
TRAIN, VAL, FEW = (f"coco_2017_{s}_panoptic_separated" for s in ("train", "val", "val_100"))


def expected_labels(png: Path, segments: list[dict]) -> np.ndarray:
    """Return the labels, painted segment by segment from the raw colours."""
    rgb = np.asarray(Image.open(png)).astype(int)
    ids = rgb[..., 0] + 256 * rgb[..., 1] + 65536 * rgb[..., 2]
    labels = np.full(ids.shape, 255)
    for segment in segments:
        category = segment["category_id"]
        labels[ids == segment["id"]] = STUFF.index(category) + 1 if category in STUFF else 0
    return labels


def write_split(coco: Path, split: str, image_ids: list[int]) -> None:
    rng = np.random.default_rng(len(split))
    for folder in ("annotations", f"panoptic_{split}", split):
        (coco / folder).mkdir(parents=True, exist_ok=True)
    images, annotations, instances = [], [], []
    for image_id in image_ids:
        stem, size = f"{image_id:012d}", (28, 40)
        ids = rng.choice(2**24 - 1, len(COCO_CATEGORIES), replace=False) + 1
        # Each image has every category, and void.
        place = rng.permutation(np.resize(np.arange(len(ids) + 1), size).ravel()).reshape(size)
        write_panoptic_png(coco / f"panoptic_{split}" / f"{stem}.png", np.append(ids, 0)[place])
        Image.new("RGB", size[::-1]).save(coco / split / f"{stem}.jpg")
        segments = [
            {"id": int(number), "category_id": category["id"], "iscrowd": 0}
            for number, category in zip(ids, COCO_CATEGORIES, strict=True)
        ]
        images.append({"id": image_id, "file_name": f"{stem}.jpg", "height": 28, "width": 40})
        annotations.append(
            {"image_id": image_id, "file_name": f"{stem}.png", "segments_info": segments}
        )
        box = {"image_id": image_id, "id": image_id, "bbox": [1, 2, 3, 4], "category_id": 1}
        instances.append({**box, "iscrowd": 0, "area": 12, "segmentation": [[1, 2, 4, 2, 4, 6]]})
    things = [{"id": c["id"], "name": c["name"]} for c in COCO_CATEGORIES if c["isthing"]]
    for kind, entries, categories in (
        ("panoptic", annotations, COCO_CATEGORIES),
        ("instances", instances, things),
    ):
        content = {"images": images, "annotations": entries, "categories": categories}
        (coco / "annotations" / f"{kind}_{split}.json").write_text(json.dumps(content))


@pytest.fixture
def root(tmp_path) -> Path:
    write_split(tmp_path / "coco", "train2017", [9, 25, 30])
    write_split(tmp_path / "coco", "val2017", [139, 285, 632])
    for kind in ("panoptic", "instances"):
        path = tmp_path / f"coco/annotations/{kind}_val2017.json"
        content = json.loads(path.read_text())
        first = {key: content[key][:1] for key in ("images", "annotations")}
        path.with_stem(f"{kind}_val2017_100").write_text(json.dumps(content | first))
    register_published(COCO_PANOPTIC, tmp_path)
    return tmp_path


def spoil(root: Path, kind: str, change) -> None:
    path = root / f"coco/annotations/{kind}_train2017.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name, split, number", [(TRAIN, "train2017", 3), (FEW, "val2017", 1)])
def test_records(root, name, split, number):
    """Every category and void occur in every image; instances come from a separate JSON."""
    check_data_sets([name], workers=1)
    records = DatasetCatalog.get(name)
    assert len(records) == number
    json_file = MetadataCatalog.get(name).json_file
    theirs = load_coco_json(json_file, str(root / "coco" / split), name)
    content = json.loads(Path(json_file.replace("instances", "panoptic")).read_text())
    segments = {a["image_id"]: a["segments_info"] for a in content["annotations"]}
    for record, expected in zip(records, theirs, strict=True):
        assert {key: record[key] for key in expected} == expected
        png = root / f"coco/panoptic_{split}" / f"{record['image_id']:012d}.png"
        assert record["pan_seg_file_name"] == str(png)
        labels = read_true_labels(record)
        assert np.array_equal(labels, expected_labels(png, segments[record["image_id"]]))
        assert set(np.unique(labels)) == {*range(54), 255}


def test_metadata_equal_detectron2s(root):
    ours = MetadataCatalog.get(VAL).as_dict()
    theirs = _get_builtin_metadata("coco_panoptic_separated")
    assert {key: ours[key] for key in theirs} == theirs
    assert ours["evaluator_type"] == "coco_panoptic_seg"


def test_instances_equal_detectron2s(root):
    """They include polygons and the RLE of a crowd."""
    crowd = {"size": [28, 40], "counts": [100, 20, 1000]}
    spoil(root, "instances", lambda c: c["annotations"][0].update(iscrowd=1, segmentation=crowd))
    json_file = MetadataCatalog.get(TRAIN).json_file
    theirs = load_coco_json(json_file, str(root / "coco/train2017"), TRAIN)
    found = get_detection_dataset_dicts([TRAIN], filter_empty=False)
    assert [r["annotations"] for r in found] == [r["annotations"] for r in theirs]
    found = get_detection_dataset_dicts([TRAIN], filter_empty=True)
    assert [r["image_id"] for r in found] == [25, 30]  # image 9 has only a crowd


def test_areas_and_boxes_of_the_json_do_not_count(root):
    other = {"area": 1, "bbox": [0, 0, 1, 1]}
    spoil(root, "panoptic", lambda c: c["annotations"][0]["segments_info"][0].update(other))
    check_data_sets([TRAIN], workers=1)


def test_missing_files(root):
    (root / "coco/annotations/instances_train2017.json").unlink()
    with pytest.raises(FileNotFoundError, match="instances_train2017.json"):
        check_files([TRAIN])
    with pytest.raises(FileNotFoundError, match=r"instances_train2017\.json: instance JSON not f"):
        DatasetCatalog.get(TRAIN)


def other_image(content: dict) -> None:
    content["images"][0]["id"] = content["annotations"][0]["image_id"] = 10


@pytest.mark.parametrize(
    "change, message",
    [
        (other_image, "has other images: one file lacks the ids 9, 10"),
        (lambda c: c["annotations"][1].update(category_id=92), "category 92 of image 25"),
        (lambda c: c["annotations"][0].pop("image_id"), ""),
        (dict.clear, ""),
    ],
)
def test_instances_of_other_data_and_a_broken_instance_json(root, change, message):
    spoil(root, "instances", change)
    with pytest.raises(DataFaults, match=rf"/instances_train2017\.json: .*{message}"):
        DatasetCatalog.get(TRAIN)


def test_categories_of_another_data_set(root):
    def other(content: dict) -> None:
        content["categories"][0]["isthing"] = 0
        content["categories"].append({"id": 999, "name": "ufo", "isthing": 1})

    spoil(root, "panoptic", other)
    first, second = faults_of(DatasetCatalog.get, TRAIN)
    assert "category 1 (" in first and "999 (" in second
