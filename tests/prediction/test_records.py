"""The records of a prediction, while several processes write them."""

import json
from pathlib import Path
from types import SimpleNamespace

from ocr_panoptic.prediction.folder import RECORDS, done_items
from ocr_panoptic.prediction.inputs import Item


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
