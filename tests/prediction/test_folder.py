"""The folder of results: one prediction at a time, of several processes."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from ocr_panoptic.prediction.folder import LOCK, RECORDS, RUN, alone_in, begin, done_items
from ocr_panoptic.prediction.inputs import Item

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_prediction(folder):
    command = [sys.executable, "-c", HOLD, str(folder / LOCK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield
        process.stdin.close()


def test_a_second_prediction_changes_nothing(model_of, call, tiny_data, tmp_path):
    """Before the first one's first result, too."""
    out = tmp_path / "out"
    with alone_in(out):
        begin(out, {"model": "first"})
    before = (out / RUN).read_text()
    with another_prediction(out), pytest.raises(ValueError, match="another prediction is writing"):
        call(model_of("semantic"), tiny_data / "tiny/raw/val/images")
    assert (out / RUN).read_text() == before


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
    assert {name: place.offset for name, place in done_items(tmp_path, items, writer).items()} == {
        "a": 0,
        "c": 0,
    }
