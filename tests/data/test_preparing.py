"""One preparation at a time of a folder, and what killed ones leave there."""

import pytest
from other_process import lock_held

from ocr_panoptic.data import SemanticSplit, prepare_panoptic, prepare_semantic
from ocr_panoptic.data.preparing import preparing

pytestmark = pytest.mark.usefixtures("clean_catalog")


def prepare_pets(raw, output):
    return prepare_panoptic("pets", {"train": raw.save().split}, output, workers=1)


def test_another_process_prepares_there(raw, tmp_path):
    output = tmp_path / "out"
    (output / ".preparation").mkdir(parents=True)
    with lock_held(output / ".preparation/lock"):
        with pytest.raises(ValueError, match=r"out: another process prepares data there\. Wait"):
            prepare_pets(raw, output)
        split = SemanticSplit(tmp_path, tmp_path)
        with pytest.raises(ValueError, match="another process"):
            prepare_semantic("x", tmp_path / "classes.yaml", {"train": split}, output)
    assert prepare_pets(raw, output).exists()


def test_a_block_inside_another_of_the_folder(tmp_path):
    with preparing(tmp_path):
        with preparing(tmp_path):
            pass
        assert (tmp_path / ".preparation/lock").exists()
    assert not (tmp_path / ".preparation/lock").exists()


def test_what_killed_preparations_left(raw, tmp_path):
    output = tmp_path / "out"
    left = [
        *(".dataset.json.12.tmp", ".panoptic_train.json.0a1b2c3d.tmp", ".instances_a.json.0.tmp"),
        *(".preparation/val/more/.x.png.12.tmp", ".preparation/.val.jsonl.12.tmp"),
    ]
    theirs = [".x.png.12.tmp", ".notes.json.0.tmp", ".dataset.json.new.tmp"]
    for name in (*left, *theirs):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).touch()
    prepare_pets(raw, output)
    assert sorted(path.name for path in output.rglob("*.tmp")) == sorted(theirs)


def test_an_output_that_is_a_file(raw, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(ValueError, match="The output folder .*out cannot be written .*--output"):
        prepare_pets(raw, tmp_path / "out")
