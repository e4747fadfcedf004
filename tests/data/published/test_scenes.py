"""The sample scenes have the same bytes for a seed, and everything that panoptic data may have."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from generate_scenes import CATEGORIES, generate_scenes
from ocr_panoptic.data.data_file import read_data_file
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    generate_scenes(folder, num_train=20, num_val=4, size=96, seed=0)
    return folder / "raw"


def files(folder: Path) -> dict:
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_a_seed_gives_the_same_bytes(scenes, tmp_path):
    generate_scenes(tmp_path / "same", num_train=20, num_val=4, size=96, seed=0)
    assert files(tmp_path / "same" / "raw") == files(scenes)
    generate_scenes(tmp_path / "other", num_train=20, num_val=4, size=96, seed=1)
    ours, other = files(scenes), files(tmp_path / "other" / "raw")
    assert ours.keys() == other.keys() and all(ours[name] != other[name] for name in ours)
    pictures = [data for name, data in ours.items() if name.suffix == ".jpg"]
    assert len(set(pictures)) == len(pictures) == 24


@pytest.mark.slow
def test_scenes_have_the_difficult_cases(scenes):
    content = json.loads((scenes / "train" / "panoptic.json").read_text())
    segments = [s for annotation in content["annotations"] for s in annotation["segments_info"]]
    assert {segment["category_id"] for segment in segments} == {c["id"] for c in CATEGORIES}
    crowds = [segment for segment in segments if segment["iscrowd"]]
    assert 0.05 * 20 <= len(crowds) <= 0.5 * 20
    # The semantic labels are the categories of the segments.
    file = read_data_file(scenes.parent / f"{scenes.parent.name}_sem.yaml")
    names = [entry["name"] for entry in file.classes["classes"]]
    name_of = {category["id"]: category["name"] for category in CATEGORIES}
    for annotation in content["annotations"]:
        ids = read_panoptic_png(scenes / "train" / "panoptic" / annotation["file_name"])
        labels = np.asarray(Image.open(scenes / "train" / "semantic" / annotation["file_name"]))
        assert np.array_equal(labels == 255, ids == 0) and 0 < np.mean(ids == 0) < 0.1
        for segment in annotation["segments_info"]:
            (label,) = np.unique(labels[ids == segment["id"]])
            assert names[label] == name_of[segment["category_id"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 1, 63, 0), r"--size is 63; expected at least 64"),
        ((0, 1, 96, 0), r"--train 0 --val 1 .*must be at least 1"),
        ((1, 1, 96, -2), r"--seed -2: .*--seed at least 0"),
        ((1, 1, 96, 0, ["sky", "sand"]), r"--classes must include ball or crate or tent"),
    ],
)
def test_scenes_that_cannot_be_drawn(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        generate_scenes(tmp_path, *arguments)
    assert not list(tmp_path.iterdir())


def test_scenes_with_some_classes(tmp_path):
    names = ["sand", "ball", "sky"]
    generate_scenes(tmp_path, num_train=12, num_val=1, size=64, seed=0, classes=names)
    content = json.loads((tmp_path / "raw/train/panoptic.json").read_text())
    categories = {c["id"]: c["name"] for c in content["categories"]}
    segments = [s for annotation in content["annotations"] for s in annotation["segments_info"]]
    assert {categories[s["category_id"]] for s in segments} == {*names} == {*categories.values()}
    labels = np.asarray(Image.open(tmp_path / "raw/train/semantic/train_00000.png"))
    assert {*np.unique(labels)} <= {0, 1, 2, 255}


def test_images_of_a_larger_run_are_not_mixed_in(tmp_path):
    generate_scenes(tmp_path, num_train=2, num_val=1, size=64, seed=0)
    before = files(tmp_path)
    with pytest.raises(ValueError, match=r"contains 1 image\(s\) from .* such as train_00001.jpg"):
        generate_scenes(tmp_path, num_train=1, num_val=1, size=64, seed=0)
    assert files(tmp_path) == before
