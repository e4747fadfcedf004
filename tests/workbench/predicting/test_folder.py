"""The folder of results: one prediction at a time, of several processes."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ocr_panoptic.engine.inputs import Item
from ocr_panoptic.workbench.predicting.folder import (
    LOCK,
    RECORDS,
    RUN,
    RecordFile,
    alone_in,
    begin,
    done_items,
)
from support.other_process import lock_held


def test_a_second_prediction_changes_nothing(model_of, call, tiny_data, tmp_path):
    """Before the first one's first result, too."""
    out = tmp_path / "out"
    with alone_in(out):
        begin(out, {"model": "first"})
    before = (out / RUN).read_text()
    with lock_held(out / LOCK), pytest.raises(ValueError, match="another prediction is writing"):
        call(model_of("semantic"), tiny_data / "tiny/raw/val/images")
    assert (out / RUN).read_text() == before


def test_a_process_of_a_killed_prediction_keeps_its_records(tmp_path):
    """One that has outlived the main process writes there still."""
    (tmp_path / RECORDS).mkdir()
    with lock_held(tmp_path / RECORDS / f"1{LOCK}"):
        with pytest.raises(ValueError, match="another prediction is writing"):
            RecordFile(tmp_path, 1)
        RecordFile(tmp_path, 0).close()
    records = RecordFile(tmp_path, 1)
    records.close()
    assert {path.name for path in (tmp_path / RECORDS).iterdir()} == {"0.jsonl", "1.jsonl"}


def test_the_lock_of_a_prediction_that_was_killed(tmp_path):
    (tmp_path / LOCK).touch()
    with alone_in(tmp_path):
        begin(tmp_path, {"model": "first"})
    assert (tmp_path / RUN).is_file() and not (tmp_path / LOCK).exists()


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(ValueError, match="out: is a file"), alone_in(tmp_path / "out"):
        pass


@pytest.mark.parametrize("left", [f".{RUN}.0a1b.tmp", RUN])
def test_a_kill_while_it_begins(tmp_path, left):
    """Before run.json has its name, and before the folder of the records is there."""
    (tmp_path / left).write_text('{"model": "first"}')
    with alone_in(tmp_path):
        begin(tmp_path, {"model": "second"})
    assert (tmp_path / RECORDS).is_dir() and "second" in (tmp_path / RUN).read_text()


def test_a_record_that_another_process_is_writing_is_not_there_yet(tmp_path):
    items = [Item(name, f"{name}.jpg", Path(f"{name}.jpg"), (1, 2)) for name in "abc"]
    lines = [json.dumps({"name": item.name, "stamp": [1, 2]}).encode() + b"\n" for item in items]
    (tmp_path / RECORDS).mkdir()
    (tmp_path / RECORDS / "0.jsonl").write_bytes(lines[0] + lines[1][:-9])
    (tmp_path / RECORDS / "1.jsonl").write_bytes(lines[2])
    writer = SimpleNamespace(is_written=lambda item: True)
    assert {name: offset for name, (_, offset) in done_items(tmp_path, items, writer).items()} == {
        "a": 0,
        "c": 0,
    }
