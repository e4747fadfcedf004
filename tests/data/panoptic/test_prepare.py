"""Prepared data against the hand-made maps, pycocotools and the command line's exit code."""

import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pycocotools.mask as mask_util
import pytest
from PIL import Image
from pycocotools.coco import COCO
from raw_pets import CAT, DOG, FIRST, GRASS, SECOND, SKY
from scripts import load_script

from ocr_panoptic.coco_panoptic import write_panoptic_png
from ocr_panoptic.data import DataFaults, prepare_panoptic, register_prepared
from ocr_panoptic.data.manifest import is_seen
from ocr_panoptic.data.panoptic.prepare import prepare_image

SCRIPT = Path(__file__).resolve().parents[3] / "datasets" / "prepare_panoptic.py"


def prepare(raw, output, **splits):
    splits = {split: data.save().split for split, data in {"train": raw, **splits}.items()}
    return prepare_panoptic("pets", splits, output, workers=1)


def labels(path):
    with Image.open(path) as image:
        return np.asarray(image)


def contents(folder):
    """Files but for the journal, which holds their times."""
    files = [p for p in folder.rglob("*") if p.is_file() and ".preparation" not in p.parts]
    return {p.relative_to(folder): p.read_bytes() for p in files}


def test_files(raw, raw_val, tmp_path):
    output = tmp_path / "datasets" / "pets"
    assert prepare(raw, output, val=raw_val) == output / "dataset.json"
    assert {str(path) for path in contents(output)} == {
        "dataset.json",
        *("panoptic_train.json", "instances_train.json", "panoptic_val.json", "instances_val.json"),
        *("sem_seg_train/first.png", "sem_seg_train/more/second.png"),
        *("sem_seg_val/first.png", "sem_seg_val/more/second.png"),
    }


def test_semantic_pngs(raw, tmp_path):
    prepare(raw, tmp_path / "pets")
    # Ascending category ids: sky (7) is 1, grass (30) is 2; cat, dog and the crowd are 0.
    label_of = {70000: 1, 3: 2, 500: 0, 900: 0, 9: 1, 12: 0, 0: 255}
    for name, ids in (("first.png", FIRST), ("more/second.png", SECOND)):
        expected = np.vectorize(label_of.get)(ids)
        assert np.array_equal(labels(tmp_path / "pets" / "sem_seg_train" / name), expected)


def test_instances(raw, tmp_path):
    prepare(raw, tmp_path / "pets")
    coco = COCO(tmp_path / "pets" / "instances_train.json")
    assert coco.loadCats(coco.getCatIds()) == [
        {"id": CAT, "name": "cat", "isthing": 1, "color": [200, 0, 0]},
        {"id": DOG, "name": "dog", "isthing": 1, "color": [200, 200, 0]},
    ]
    assert sorted(coco.getImgIds()) == [5, 21]
    instances = coco.loadAnns(coco.getAnnIds())
    kept = ("id", "image_id", "category_id", "iscrowd", "area", "bbox")
    assert [tuple(instance[key] for key in kept) for instance in instances] == [
        (1, 21, DOG, 0, 7, [1, 1, 4, 3]),
        (2, 21, CAT, 1, 4, [3, 3, 2, 2]),
        (3, 5, CAT, 0, 4, [0, 2, 2, 2]),
    ]
    for instance, mask in zip(instances, (FIRST == 500, FIRST == 900, SECOND == 12), strict=True):
        assert isinstance(instance["segmentation"]["counts"], str)
        assert np.array_equal(mask_util.decode(instance["segmentation"]), mask)


def test_panoptic_json_has_areas_and_boxes_of_the_png(raw, tmp_path):
    complete = json.loads(json.dumps(raw.content["annotations"]))
    for annotation in raw.content["annotations"]:
        for segment in annotation["segments_info"]:
            for key in ("area", "bbox"):
                del segment[key]
    prepare(raw, tmp_path / "pets")
    prepared = json.loads((tmp_path / "pets" / "panoptic_train.json").read_text())
    assert prepared["annotations"] == complete
    assert prepared["images"] == raw.content["images"]


def test_manifest_is_portable(raw, tmp_path):
    """Paths inside the prepared folder are relative to it, others absolute."""
    inside = prepare(raw, raw.folder)
    content = json.loads(inside.read_text())
    assert content["splits"]["train"] == {
        "images": "images",
        "panoptic_json": "panoptic_train.json",
        "panoptic_root": "panoptic",
        "sem_seg_root": "sem_seg_train",
        "instances_json": "instances_train.json",
    }
    outside = json.loads(prepare(raw, tmp_path / "pets").read_text())
    assert outside["splits"]["train"]["images"] == str(raw.folder / "images")


@pytest.fixture
def prepared_names(monkeypatch):
    """Of the images that were read since the list was last cleared."""
    names = []

    def read(image, *args, **kwargs):
        names.append(image.png_name)
        return prepare_image(image, *args, **kwargs)

    monkeypatch.setattr("ocr_panoptic.data.panoptic.prepare.prepare_image", read)
    return names


def test_repeating_changes_nothing(raw, tmp_path, prepared_names):
    prepare(raw, tmp_path / "pets")
    assert prepared_names == ["first.png", "more/second.png"]
    before = contents(tmp_path / "pets")
    written = [path for path in (tmp_path / "pets").rglob("*_train*")]
    times = [path.stat().st_mtime_ns for path in written]
    prepare(raw, tmp_path / "pets")
    assert len(prepared_names) == 2, "no image is read again"
    assert contents(tmp_path / "pets") == before
    assert [path.stat().st_mtime_ns for path in written] == times


def changed_map(raw):
    raw.png("first.png").unlink()
    write_panoptic_png(raw.png("first.png"), np.where(FIRST == 500, 3, FIRST))
    for segment in raw.content["annotations"][0]["segments_info"]:
        segment.pop("area"), segment.pop("bbox")
    raw.content["annotations"][0]["segments_info"].pop(2)


def changed_kind(raw):
    raw.content["categories"][2]["isthing"] = 1  # the sky


def changed_category_of_a_segment(raw):
    raw.content["annotations"][0]["segments_info"][0]["category_id"] = GRASS


def changed_colour(raw):
    raw.content["categories"][0]["color"] = [1, 2, 3]


def changed_image_id(raw):
    raw.content["images"][0]["id"] = raw.content["annotations"][0]["image_id"] = 3


def removed_image(raw):
    raw.content["images"].pop(0), raw.content["annotations"].pop(0)


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (changed_map, ["first.png"]),
        (changed_kind, ["first.png", "more/second.png"]),
        (changed_category_of_a_segment, ["first.png"]),
        (changed_colour, []),
        (changed_image_id, ["first.png"]),
        (removed_image, []),
    ],
)
@pytest.mark.parametrize("interrupted", [False, True])
def test_after_a_change_all_is_as_if_prepared_anew(
    raw, tmp_path, prepared_names, monkeypatch, change, read, interrupted
):
    """Also where the first run after it was interrupted before the last step."""
    prepare(raw, tmp_path / "pets")
    change(raw)
    prepared_names.clear()
    if interrupted:

        def interrupt(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("ocr_panoptic.data.panoptic.prepare._write_lists", interrupt)
            prepare(raw, tmp_path / "pets")
    prepare(raw, tmp_path / "pets")
    assert prepared_names == read
    prepare(raw, tmp_path / "anew")
    found, expected = contents(tmp_path / "pets"), contents(tmp_path / "anew")
    assert {path: found[path] for path in expected} == expected


def test_each_file_is_decoded_once(raw, tmp_path, monkeypatch):
    opened = []

    def open_and_note(file, *args, open=Image.open, **kwargs):
        opened.append(Path(file.name))
        return open(file, *args, **kwargs)

    monkeypatch.setattr(Image, "open", open_and_note)
    prepare(raw, tmp_path / "pets")
    expected = [raw.image("first.jpg"), raw.png("first.png")]
    assert opened == expected + [raw.image("more/second.bmp"), raw.png("more/second.png")]


def test_processes_change_nothing(raw, tmp_path):
    for number in range(30, 40):
        segments = [{"id": number, "category_id": CAT}]
        raw.add(number, f"{number}.png", f"{number}.png", np.full((3, 3), number), segments)
    prepare_panoptic("pets", {"train": raw.split}, tmp_path / "one", workers=1)
    prepare_panoptic("pets", {"train": raw.split}, tmp_path / "three", workers=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


def test_nothing_is_written_when_there_is_a_fault(raw, raw_val, tmp_path):
    raw.image("first.jpg").unlink()
    raw_val.png("first.png").unlink()
    with pytest.raises(DataFaults) as error:
        prepare(raw, tmp_path / "pets", val=raw_val)
    assert len(error.value.faults) == 2, "the faults of both splits"
    assert not contents(tmp_path / "pets")


@pytest.mark.parametrize(
    "name", ["panoptic_train.json", "instances_val.json", "sem_seg_train", "dataset.json"]
)
def test_files_of_the_user_are_never_written_over(raw, raw_val, tmp_path, name):
    taken = tmp_path / "pets" / name
    taken.parent.mkdir()
    taken.write_text("{}")
    message = f"{taken}: would be written over, but no earlier preparation of such data wrote it."
    with pytest.raises(ValueError, match=message):
        prepare(raw, tmp_path / "pets", val=raw_val)
    assert contents(tmp_path / "pets") == {Path(name): b"{}"}


def test_an_interrupted_run_is_repeated(raw, raw_val, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("ocr_panoptic.data.panoptic.prepare._write_lists", interrupt)
        prepare(raw, tmp_path / "pets", val=raw_val)
    prepare(raw, tmp_path / "pets", val=raw_val)
    prepare(raw, tmp_path / "whole", val=raw_val)
    assert contents(tmp_path / "pets") == contents(tmp_path / "whole")


def test_killed_anywhere_it_is_whole_or_not_used(raw, tmp_path, monkeypatch, clean_catalog):
    """A repetition with other labels, stopped before each of the files that it writes."""
    folder, former = tmp_path / "root/pets", tmp_path / "former"
    prepare(raw, former)
    text = json.dumps(raw.content)
    for key in ("id", "category_id"):  # of the sky: it comes after the grass then
        text = text.replace(f'"{key}": {SKY},', f'"{key}": 31,')
    raw.content = json.loads(text)
    prepare(raw, tmp_path / "new")
    outcomes = []
    for files in itertools.count():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(former, folder)
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", stopped_after(files, os.replace))
            try:
                prepare(raw, folder)
                break
            except KeyboardInterrupt:
                pass
        try:
            register_prepared(tmp_path / "root")
            assert contents(folder) == contents(former)
            outcomes.append("as before")
        except ValueError as error:
            assert "the preparation of pets has not come to its end" in str(error)
            outcomes.append("refused")
    assert contents(folder) == contents(tmp_path / "new") != contents(former)
    assert outcomes.count("refused") >= 4  # the semantic PNGs, both JSONs and the manifest


def stopped_after(times, function):
    left = itertools.repeat(None, times)

    def call(*arguments):
        if next(left, "none") == "none":
            raise KeyboardInterrupt
        return function(*arguments)

    return call


def test_a_split_may_be_added_later(raw, raw_val, tmp_path):
    prepare(raw, tmp_path / "pets")
    prepare(raw, tmp_path / "pets", val=raw_val)
    assert (tmp_path / "pets" / "instances_val.json").is_file()


def test_categories_of_the_splits_differ(raw, raw_val, tmp_path):
    raw_val.content["categories"][0]["name"] = "lion"
    raw_val.content["categories"][1]["color"] = [1, 1, 1]
    raw_val.content["categories"].append({"id": 40, "name": "snow", "isthing": 0})
    with pytest.raises(DataFaults) as error:
        prepare(raw, tmp_path / "pets", val=raw_val)
    train, val = raw.split.panoptic_json, raw_val.split.panoptic_json
    assert error.value.faults == [
        f"category 4 is 'cat' (thing) in {train} and 'lion' (thing) in {val}: "
        "splits must have the same categories.",
        f"category 40 is absent in {train} and 'snow' (stuff) in {val}: "
        "splits must have the same categories.",
    ]


def test_order_and_colours_of_the_categories_may_differ(raw, raw_val, tmp_path):
    raw_val.content["categories"].reverse()
    raw_val.content["categories"][0]["color"] = [1, 1, 1]
    prepare(raw, tmp_path / "pets", val=raw_val)
    for name in ("first.png", "more/second.png"):
        train, val = (tmp_path / "pets" / f"sem_seg_{split}" / name for split in ("train", "val"))
        assert train.read_bytes() == val.read_bytes()


def test_images_that_are_only_void_are_left_out(raw, tmp_path, caplog):
    for number in range(100, 107):
        raw.add(number, f"{number}.png", f"{number}.png", np.zeros((3, 3), int), [])
    with caplog.at_level(logging.WARNING):
        prepare(raw, tmp_path / "pets")
    (message,) = caplog.messages
    assert "left out 7 of 9 images that hold nothing but void: 100.png, 101.png" in message
    for name in ("panoptic_train.json", "instances_train.json"):
        images = json.loads((tmp_path / "pets" / name).read_text())["images"]
        assert [image["id"] for image in images] == [21, 5]
    assert len(list((tmp_path / "pets" / "sem_seg_train").rglob("*.png"))) == 2


def test_all_images_are_void(raw, tmp_path):
    for key in ("images", "annotations"):
        raw.content[key].clear()
    raw.add(1, "a.png", "a.png", np.zeros((3, 3), int), [])
    with pytest.raises(DataFaults, match="no image holds a segment, all pixels are void"):
        prepare(raw, tmp_path / "pets")


def test_ids_zero_and_texts(raw, tmp_path):
    """Category 0 and image ids that are texts go through; segment 0 alone is void."""
    for category in raw.content["categories"]:
        category["id"] = {SKY: 0}.get(category["id"], category["id"])
    for image, annotation in zip(raw.content["images"], raw.content["annotations"], strict=True):
        image["id"] = annotation["image_id"] = f"image {image['id']}"
        for segment in annotation["segments_info"]:
            segment["category_id"] = {SKY: 0}.get(segment["category_id"], segment["category_id"])
    prepare(raw, tmp_path / "pets")
    assert set(np.unique(labels(tmp_path / "pets" / "sem_seg_train" / "first.png"))) == {
        *(0, 1, 2, 255)
    }
    coco = COCO(tmp_path / "pets" / "instances_train.json")
    assert coco.getImgIds() == ["image 21", "image 5"]


@pytest.mark.parametrize("workers", [0, -1])
def test_workers(raw, tmp_path, workers):
    with pytest.raises(ValueError, match=f"--workers is {workers}, it must be at least 1"):
        prepare_panoptic("pets", {"train": raw.split}, tmp_path / "pets", workers)


def test_several_processes_find_the_same_faults(raw, tmp_path):
    for number in range(30, 60):
        raw.add(number, f"{number}.png", f"{number}.png", np.full((3, 3), number), [])
    found = []
    for workers in (1, 3):
        with pytest.raises(DataFaults) as error:
            prepare_panoptic("pets", {"train": raw.split}, tmp_path / f"{workers}", workers)
        found.append(error.value.faults)
    assert found[0] == found[1]
    assert len(found[0]) == 30
    assert json.loads(raw.split.panoptic_json.read_text()) == raw.content


@pytest.mark.parametrize("name", ["", "a/b", "../pets", ".hidden", "my pets"])
def test_names_that_are_no_folder(raw, tmp_path, name):
    with pytest.raises(ValueError, match=r"use letters, digits"):
        prepare_panoptic(name, {"train": raw.split}, tmp_path / "pets", workers=1)


def test_names_of_others(raw, tmp_path, monkeypatch, clean_catalog):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    with pytest.raises(ValueError, match="coco_2017_train belongs to a data set that Detectron2"):
        prepare_panoptic("coco_2017", {"train": raw.split}, tmp_path / "coco_2017", workers=1)
    prepare(raw, tmp_path / "pets")
    register_prepared(tmp_path)
    prepare(raw, tmp_path / "pets")  # its own name
    with pytest.raises(ValueError, match=f"{tmp_path}/pets/dataset.json has it already. Give ano"):
        prepare(raw, tmp_path / "copy")
    (tmp_path / "pets/dataset.json").write_text("{")
    prepare(raw, tmp_path / "copy")


def test_a_folder_that_commands_do_not_look_into(raw, tmp_path, monkeypatch, caplog):
    """It is said at once, before the check finds a fault."""
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "root"))
    arguments = ["--name", "pets", "--workers", "1", "--train", *raw.arguments]
    arguments += ["--output", str(tmp_path / "my/pets")]
    message = f"set DETECTRON2_DATASETS={tmp_path / 'my'} for the commands"
    main = load_script("datasets/prepare_panoptic.py").main
    main(arguments)
    assert message in caplog.text
    caplog.clear()
    raw.image("first.jpg").unlink()
    with pytest.raises(DataFaults):
        main(arguments)
    assert message in caplog.text


@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_a_name_that_is_no_folders_is_told_first(tmp_path, monkeypatch, caplog, kind):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path))
    arguments = ["--name", "../x", "--train", *"abc"[: 3 if kind == "panoptic" else 2]]
    arguments += ["--classes", "c"] if kind == "semantic" else []
    with pytest.raises(ValueError, match=r"Data set name '\.\./x': use letters"):
        load_script(f"datasets/prepare_{kind}.py").main(arguments)
    assert not caplog.records


@pytest.mark.parametrize("output", ["root/pets", "root/../root/pets", "link/pets"])
def test_folders_that_commands_look_into(tmp_path, monkeypatch, output):
    monkeypatch.setenv("DETECTRON2_DATASETS", str(tmp_path / "root"))
    (tmp_path / "link").symlink_to("root")
    assert is_seen(tmp_path / output)
    assert not is_seen(tmp_path / output / "deeper")
    assert not is_seen(tmp_path)


def test_command_writes_under_the_root(raw, raw_val, tmp_path, monkeypatch, capsys):
    root = tmp_path / "root"
    monkeypatch.setenv("DETECTRON2_DATASETS", str(root))
    split_arguments = ["--train", *raw.arguments, "--val", *raw_val.arguments]
    load_script("datasets/prepare_panoptic.py").main(["--name", "pets", *split_arguments])
    assert "pets_train, pets_val" in capsys.readouterr().out
    assert (root / "pets" / "dataset.json").is_file()


@pytest.mark.slow
def test_command_reports_faults_and_fails(raw, tmp_path):
    raw.image("first.jpg").unlink()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--name", "pets", "--train", *raw.arguments],
        env={**os.environ, "DETECTRON2_DATASETS": str(tmp_path / "root")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "1 fault in the data:" in done.stderr
    assert f"{raw.image('first.jpg')}: image 21 not found." in done.stderr
    assert "Traceback" not in done.stderr
    assert not contents(tmp_path / "root")


@pytest.mark.data
def test_real_coco_images(real_data, tmp_path):
    """Every instance's mask, box and area are those of its segment."""
    from panopticapi.utils import rgb2id

    from ocr_panoptic.data import RawSplit

    sample = real_data / "panoptic_examples.json", real_data / "panoptic_examples"
    split = RawSplit(real_data / "input_images", *sample)
    prepare_panoptic("coco_sample", {"train": split}, tmp_path, workers=1)
    given = json.loads(sample[0].read_text())
    things = {category["id"] for category in given["categories"] if category["isthing"]}
    coco = COCO(tmp_path / "instances_train.json")
    for annotation in given["annotations"]:
        image_id = annotation["image_id"]
        ids = rgb2id(np.asarray(Image.open(sample[1] / annotation["file_name"])))
        segments = [s for s in annotation["segments_info"] if s["category_id"] in things]
        instances = coco.loadAnns(coco.getAnnIds([image_id]))
        assert len(segments) == len(instances) > 0
        for segment, instance in zip(segments, instances, strict=True):
            assert np.array_equal(coco.annToMask(instance), ids == segment["id"])
            for key in ("area", "bbox", "iscrowd", "category_id"):
                assert instance[key] == segment[key]
