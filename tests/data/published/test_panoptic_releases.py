"""Cityscapes and ADE20K for Panoptic-FPN, pixel by pixel, and what is refused."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from cityscapesscripts.helpers.labels import id2label
from detectron2.data import DatasetCatalog, MetadataCatalog
from PIL import Image

from ocr_panoptic.data import (
    DataFaults,
    PanopticDatasetMapper,
    PanopticSplit,
    check,
    check_data_sets,
    write_data_file,
)
from ocr_panoptic.data.published.panoptic import PANOPTIC_RELEASES, register_panoptic_releases
from ocr_panoptic.data.published.server_splits import register_server_splits
from ocr_panoptic.formats.coco_panoptic import PanopticTruth, read_panoptic_png
from ocr_panoptic.formats.true_labels import read_true_labels
from support import published_trees as trees

EVALUATED = [label for label in id2label.values() if not label.ignoreInEval]
CITYSCAPES = ["cityscapes_panoptic_train", "cityscapes_panoptic_val"]
ADE20K = ["ade20k_panoptic_train", "ade20k_panoptic_val"]
STUFF = [label.id for label in EVALUATED if not label.hasInstances]
THINGS = [label.id for label in EVALUATED if label.hasInstances]


@pytest.fixture
def cityscapes(tmp_path, clean_catalog, monkeypatch) -> Path:
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    trees.write_cityscapes(tmp_path)
    return tmp_path


@pytest.fixture
def ade20k(tmp_path, clean_catalog, monkeypatch) -> Path:
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    trees.write_ade20k(tmp_path)
    return tmp_path


def test_cityscapes_records(cityscapes):
    """Instances and labels against instanceIds.png, which cityscapesscripts made its files of."""
    register_panoptic_releases(CITYSCAPES)
    check_data_sets(CITYSCAPES, workers=1)
    for split, frames in trees.FRAMES.items():
        records = DatasetCatalog.get(f"cityscapes_panoptic_{split}")
        assert [record["image_id"] for record in records] == sorted(frames)
        for record in records:
            image = Path(record["file_name"])
            assert image.is_file() and image.name == f"{record['image_id']}_leftImg8bit.png"
            folder = image.parents[3] / "gtFine" / split / image.parent.name
            png = folder / f"{record['image_id']}_gtFine_instanceIds.png"
            check_cityscapes(record, np.asarray(Image.open(png)))
    metadata = MetadataCatalog.get("cityscapes_panoptic_val")
    assert metadata.thing_classes == [id2label[number].name for number in THINGS]
    assert metadata.stuff_classes == ["things", *(id2label[number].name for number in STUFF)]
    assert metadata.stuff_colors[1] == [128, 64, 128]


def check_cityscapes(record: dict, ids: np.ndarray) -> None:
    label_ids = np.where(ids >= 1000, ids // 1000, ids)
    expected = np.full(ids.shape, 255)
    for number in THINGS:
        expected[label_ids == number] = 0
    for label, number in enumerate(STUFF, 1):
        expected[label_ids == number] = label
    assert np.array_equal(read_true_labels(record), expected)
    own = read_panoptic_png(record["pan_seg_file_name"])
    found = [
        (s["category_id"], s["iscrowd"], (own == s["id"]).astype(np.uint8).tobytes())
        for s in record["segments_info"]
        if s["isthing"]
    ]
    instances = [
        (
            THINGS.index(number if number < 1000 else number // 1000),
            int(number < 1000),  # a group that nobody told apart
            (ids == number).astype(np.uint8).tobytes(),
        )
        for number in np.unique(ids)
        if (number if number < 1000 else number // 1000) in THINGS
    ]
    assert len(instances) > 8 and sorted(found) == sorted(instances)


def test_ade20k_records(ade20k):
    """Hidden segments are none: neither of the truth nor of what a training sees."""
    register_panoptic_releases(ADE20K)
    check_data_sets(ADE20K, workers=1)
    metadata = MetadataCatalog.get("ade20k_panoptic_val")
    assert len(metadata.thing_classes) == 100 and len(metadata.stuff_classes) == 51
    assert metadata.thing_classes[:2] == ["bed", "window"]  # "window " in the JSON
    for split in ("train", "val"):
        truth = PanopticTruth(MetadataCatalog.get(f"ade20k_panoptic_{split}"))
        for record in DatasetCatalog.get(f"ade20k_panoptic_{split}"):
            ids = read_panoptic_png(record["pan_seg_file_name"])
            shown = {s["id"] for s in truth[record["image_id"]].segments}
            assert shown == set(np.unique(ids)) - {0} and len(shown) == 5
            assert len(record["segments_info"]) == 6
            mapper = PanopticDatasetMapper(
                is_train=True,
                augmentations=[],
                image_format="BGR",
                use_instance_mask=True,
                num_sem_seg_classes=51,
            )
            assert len(mapper(record)["instances"]) == 3
            labels = read_true_labels(record)
            assert (labels[ids == 0] == 255).all() and (labels[39, 40:59] == 0).all()
            first = next(s for s in record["segments_info"] if s["id"] == 1000)
            assert (labels[ids == 1000] == first["category_id"]).all()


def test_the_hidden_are_a_fault_of_other_data(ade20k):
    """Which areas and boxes are, too."""
    folder = ade20k / "ADEChallengeData2016"
    split = PanopticSplit(
        folder / "images/training",
        folder / "ade20k_panoptic_train.json",
        folder / "ade20k_panoptic_train",
    )
    write_data_file(ade20k / "mine.yaml", "mine", {"train": split})
    with pytest.raises(DataFaults, match="has no pixel in the PNG"):
        check([ade20k / "mine.yaml"], workers=1)


def test_one_split_alone(cityscapes, caplog):
    (cityscapes / "cityscapes/gtFine/cityscapes_panoptic_val.json").unlink()
    with caplog.at_level(logging.WARNING):
        register_panoptic_releases(["cityscapes_panoptic_train", "coco_2017_val"])
    assert "has 2 images, the release has 2975" in caplog.text
    assert "cityscapes_panoptic_val" not in DatasetCatalog


@pytest.mark.parametrize("name", PANOPTIC_RELEASES)
def test_nothing_there(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="not found. Run ") as error:
        register_panoptic_releases([name], tmp_path)
    assert str(tmp_path / PANOPTIC_RELEASES[name].split.annotations) in str(error.value)


def spoiled(path: Path, spoil) -> None:
    content = json.loads(path.read_text())
    spoil(content)
    path.write_text(json.dumps(content))


def rename(content: dict, number: str) -> None:
    content["images"][0]["id"] = content["annotations"][0]["image_id"] = number


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c["categories"][0].update(id=0), r"segment|not Cityscapes' 19 by their label"),
        (lambda c: c["categories"][18].update(isthing=0), "not Cityscapes' 19"),
        (lambda c: rename(c, "../../x"), r"image id '../../x' is not of the form <city>_"),
        (
            lambda c: rename(c, "ulm_000000_000019"),
            "ulm_000000_000019_leftImg8bit.png: .*not found",
        ),
    ],
)
def test_what_is_no_cityscapes(cityscapes, spoil, message):
    spoiled(cityscapes / "cityscapes/gtFine/cityscapes_panoptic_val.json", spoil)
    with pytest.raises(DataFaults, match=message):
        register_panoptic_releases(CITYSCAPES)
        check_data_sets(CITYSCAPES, workers=1)


def test_what_is_no_ade20k(ade20k):
    def no_thing(content: dict) -> None:
        content["categories"][149]["isthing"] = 0

    spoiled(ade20k / "ADEChallengeData2016/ade20k_panoptic_train.json", no_thing)
    with pytest.raises(DataFaults, match="99 categories are things; ADE20K has 100"):
        register_panoptic_releases(ADE20K)


def test_server_splits(tmp_path, clean_catalog):
    register_server_splits(tmp_path)
    city = tmp_path / "cityscapes/leftImg8bit/test/berlin"
    city.mkdir(parents=True)
    (city / "berlin_000000_000019_leftImg8bit.png").touch()
    assert DatasetCatalog.get("cityscapes_panoptic_test") == [
        {
            "file_name": str(city / "berlin_000000_000019_leftImg8bit.png"),
            "image_id": "berlin_000000_000019",
        }
    ]
    info = tmp_path / "coco/annotations/image_info_test-dev2017.json"
    info.parent.mkdir(parents=True)
    image = {"id": 7, "file_name": "000000000007.jpg"}
    info.write_text(json.dumps({"images": [image]}))
    name = "coco_2017_test-dev_panoptic_separated"
    assert DatasetCatalog.get(name) == [
        {"file_name": str(tmp_path / "coco/test2017/000000000007.jpg"), "image_id": 7}
    ]
    trained = MetadataCatalog.get("coco_2017_train_panoptic_separated")
    for key in (
        *("thing_classes", "stuff_classes", "thing_colors", "stuff_colors"),
        *("thing_dataset_id_to_contiguous_id", "stuff_dataset_id_to_contiguous_id"),
    ):
        assert list(map(str, MetadataCatalog.get(name).get(key))) == list(
            map(str, trained.get(key))
        )
    image["file_name"] = "../7.jpg"
    info.write_text(json.dumps({"images": [image]}))
    with pytest.raises(ValueError, match="must lie inside the given folder"):
        DatasetCatalog.get(name)
    info.write_text("{}")
    with pytest.raises(ValueError, match="lists no images"):
        DatasetCatalog.get(name)
