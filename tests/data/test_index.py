"""Checks of data, once, and what of them is kept between runs."""

import json
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from detectron2.config import get_cfg
from detectron2.data import DatasetCatalog
from detectron2.data.transforms import ResizeShortestEdge
from PIL import Image

from ocr_panoptic.data import index as index_module
from ocr_panoptic.data.data_check import DETECTRON2S_SIZES, check_data, check_data_sets, size_fault
from ocr_panoptic.data.data_file import SemanticSplit, write_data_file
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.data.index import Index, cache_folder, index_file
from ocr_panoptic.data.panoptic.source import PanopticSource
from ocr_panoptic.data.register import register_data_files
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png, write_panoptic_png
from ocr_panoptic.formats.labels import read_label_png, write_label_png
from support.faults import faults_of
from support.raw_pets import CAT, FIRST, FIRST_SEGMENTS, SKY, RawData

pytestmark = pytest.mark.usefixtures("clean_catalog")


@pytest.fixture
def looked_at(monkeypatch):
    """Names of the images that were decoded since the list was last cleared."""
    names, look = [], PanopticSource.check

    def noting(self, record):
        names.append(record["file_name"])
        return look(self, record)

    monkeypatch.setattr(PanopticSource, "check", noting)
    return names


def changed_map(raw):
    write_panoptic_png(raw.png("first.png"), np.where(FIRST == 500, 3, FIRST))
    for segment in raw.content["annotations"][0]["segments_info"]:
        segment.pop("area", None), segment.pop("bbox", None)
    raw.content["annotations"][0]["segments_info"].pop(2)


def removed_image(raw):
    raw.content["images"].pop(0), raw.content["annotations"].pop(0)


def touched(raw):
    os.utime(raw.image("first.jpg"), ns=(1, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda raw: None, []),
        (changed_map, ["first.jpg"]),
        (
            lambda raw: raw.content["annotations"][0]["segments_info"][0].update(category_id=CAT),
            ["first.jpg"],
        ),
        (touched, ["first.jpg"]),
        (lambda raw: raw.content["categories"][0].update(color=[1, 2, 3]), []),
        (removed_image, []),
    ],
)
def test_only_what_has_changed_is_checked_again(raw, looked_at, change, expected):
    raw.checked()
    assert sorted(looked_at) == ["first.jpg", "more/second.bmp"]
    looked_at.clear()
    change(raw)
    raw.checked()
    assert looked_at == expected
    looked_at.clear()
    raw.checked()
    assert looked_at == []


def test_after_faults_were_mended_the_rest_is_not_checked_again(raw, looked_at):
    content = raw.image("first.jpg").read_bytes()
    raw.image("first.jpg").unlink()
    with pytest.raises(DataFaults, match="image 21 not found"):
        raw.checked()
    raw.image("first.jpg").write_bytes(content)
    looked_at.clear()
    raw.checked()
    assert looked_at == ["first.jpg"]


@pytest.mark.slow
def test_an_interrupted_check_goes_on(raw, monkeypatch, looked_at):
    for number in range(30, 40):
        raw.add(number, f"{number}.jpg", f"{number}.png", FIRST, FIRST_SEGMENTS)
    monkeypatch.setattr(index_module, "SAVED", 4)
    look = PanopticSource.check

    def interrupted(self, record):
        if len(looked_at) == 9:
            raise KeyboardInterrupt
        return look(self, record)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PanopticSource, "check", interrupted)
        raw.checked()
    looked_at.clear()
    raw.checked()
    assert len(looked_at) == 12 - 8, "two times four were kept"


def test_nothing_is_written_beside_the_data(raw):
    file = raw.described()
    paths = [raw.folder, *raw.folder.rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in paths}
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        check_data([file], workers=1)
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert {p: p.stat().st_mtime_ns for p in [raw.folder, *raw.folder.rglob("*")]} == before


@pytest.mark.slow
def test_processes_find_the_same(raw):
    for number in range(30, 60):
        segments = [{"id": 1, "category_id": CAT}]
        raw.add(number, f"{number}.png", f"{number}.png", np.full((3, 3), number), segments)
    found = []
    for workers in (1, 3):
        shutil.rmtree(cache_folder())
        found.append(faults_of(check_data, [raw.described()], workers))
    assert found[0] == found[1] and len(found[0]) == 60
    assert (cache_folder() / "pets_faults.txt").read_text().count("\n") == 60


def test_the_faults_of_all_splits(raw, raw_val):
    raw.image("first.jpg").unlink()
    raw_val.png("first.png").unlink()
    assert len(faults_of(raw.checked, val=raw_val)) == 2


def index_path() -> Path:
    return index_file(DatasetCatalog["pets_train"])


@pytest.mark.parametrize("size", [0, 100, -4000])
def test_a_broken_index_is_made_anew(raw, size):
    raw.checked()
    expected = DatasetCatalog.get("pets_train")
    content = index_path().read_bytes()
    index_path().write_bytes(content[:size])
    raw.checked()
    assert DatasetCatalog.get("pets_train") == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", ["UPDATE fact SET value = NULL", "UPDATE fact SET value = '{'", "DELETE FROM fact"]
)
@pytest.mark.parametrize("key", ["common", "records"])
def test_an_index_without_its_facts_is_made_anew(raw, change, key):
    raw.checked()
    expected = DatasetCatalog.get("pets_train")
    with sqlite3.connect(index_path()) as connection:
        connection.execute(f"{change} WHERE key = ?", (key,))
    assert DatasetCatalog.get("pets_train") == expected


def test_a_damaged_record_is_told(raw):
    raw.checked()
    with sqlite3.connect(index_path()) as connection:
        connection.execute("UPDATE image SET record = '{' WHERE place = 1")
    with pytest.raises(ValueError, match=r"\.sqlite: cannot be read \(damaged\)\. Remove"):
        DatasetCatalog.get("pets_train")


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("max_page_count = 3", "database or disk is full"),
        ("query_only = 1", "attempt to write a readonly database"),
    ],
)
@pytest.mark.parametrize("is_checked", [False, True])
def test_an_index_that_cannot_be_written(raw, monkeypatch, limit, reason, is_checked):
    """The fault is reported as an error of the file. The limits are sqlite's."""
    register_data_files([raw.described()])
    source = DatasetCatalog["pets_train"]
    connect = sqlite3.connect

    def limited(*args, **kwargs):
        connection = connect(*args, **kwargs)
        connection.execute(f"PRAGMA {limit}")
        return connection

    if is_checked:
        monkeypatch.setattr(source.__class__, "check", lambda *_: ([], ["long"] * 10_000))
    else:
        index_path().unlink()
    monkeypatch.setattr(index_module.sqlite3, "connect", limited)
    with pytest.raises(ValueError, match=f"cannot be written .{reason}.. Free space there, or set"):
        Index(source).check(workers=1)


KILLED = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA cache_size = 1")  # so that the change is on the disk before its end
connection.execute("UPDATE image SET state = NULL, result = hex(zeroblob(100000))")
os._exit(9)
"""


@pytest.mark.slow
def test_what_a_killed_process_has_half_written_is_taken_back(raw, looked_at):
    raw.checked()
    expected, journal = DatasetCatalog.get("pets_train"), Path(f"{index_path()}-journal")
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(index_path())])
        assert journal.stat().st_size
        looked_at.clear()
        raw.checked()
        assert looked_at == [] and not journal.exists()
    assert DatasetCatalog.get("pets_train") == expected
    subprocess.run([sys.executable, "-c", KILLED, str(index_path())])
    index_path().unlink()  # as the documents allow, without the journal
    for _ in range(2):
        raw.checked()
        assert DatasetCatalog.get("pets_train") == expected


@pytest.mark.slow
def test_another_index_in_its_place_is_not_read(raw):
    """A loader's process may start after another command has met changed annotations."""
    raw.checked()
    index = Index(DatasetCatalog["pets_train"])
    copy = pickle.dumps(index)
    touched(raw)
    raw.checked()  # the same records
    assert pickle.loads(copy).record(0)["id"] == 5
    removed_image(raw)
    raw.checked()
    assert index.record(1)["id"] == 21, "what is open stays as it was"
    with pytest.raises(ValueError, match="pets_train: its annotations have changed since the sta"):
        pickle.loads(copy).record(0)


def test_other_threads_read_it_and_other_processes_miss_it(raw):
    raw.checked()
    index = Index(DatasetCatalog["pets_train"])
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(index.record, 1).result() == index.record(1)
    copy = pickle.dumps(index)
    index_path().unlink()
    with pytest.raises(ValueError, match=r"cannot be read \(unable to open database file\)"):
        pickle.loads(copy).record(0)


def test_changed_while_it_is_read(raw, monkeypatch):
    register_data_files([raw.described()])
    source = DatasetCatalog["pets_train"]
    read = PanopticSource.read

    def changing(self):
        os.utime(self.split.annotations, ns=(1, 1))
        return read(self)

    os.utime(source.split.annotations, ns=(2, 2))
    monkeypatch.setattr(PanopticSource, "read", changing)
    with pytest.raises(ValueError, match="pets_train: its annotations have changed while they"):
        source.index()


@pytest.mark.slow
def test_many_images_are_trusted_by_the_times_of_their_folders(raw, monkeypatch, looked_at):
    """A file that is written over in place is found by `check`, and when it is loaded."""
    monkeypatch.setattr(index_module, "MANY", 1)
    raw.checked()
    looked_at.clear()
    with open(raw.png("first.png"), "r+b") as file:  # in place
        file.write(b"no PNG")
    check_data_sets(["pets_train"])
    assert looked_at == []
    with pytest.raises(DataFaults, match="broken or truncated"):
        raw.checked()
    with pytest.raises(DataFaults, match="broken or truncated"):  # known to be, from now on
        check_data_sets(["pets_train"])
    write_panoptic_png(raw.png("first.png"), FIRST)
    looked_at.clear()
    check_data_sets(["pets_train"])
    assert looked_at == ["first.jpg"], "its folder has changed"


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="cannot be written.*Set XDG_CACHE_HOME to a folder"):
        cache_folder()


@pytest.mark.slow
def test_one_index_for_each_place(raw, tmp_path):
    """Data of one name in two folders do not take turns in one index."""
    other = RawData(tmp_path / "other")
    raw.checked()
    first = index_path()
    other.checked()
    assert index_path() != first and first.exists()
    with sqlite3.connect(first) as connection:
        (text,) = connection.execute("SELECT record FROM image WHERE place = 0").fetchone()
    assert json.loads(text)["id"] == 5


@pytest.mark.slow
def test_summary(raw):
    """Counted by hand in raw_pets.py."""
    (split,) = check_data([raw.described()], workers=1).splits
    assert (split.name, split.images, split.pixels) == ("pets_train", 2, 48 + 20)
    assert [(c.name, c.kind, c.images, c.segments, c.pixels) for c in split.classes] == [
        ("cat", "thing", 2, 2, 4 + 4),
        ("sky", "stuff", 2, 2, 16 + 14),
        ("dog", "thing", 1, 1, 7),
        ("grass", "stuff", 1, 1, 18),
    ]
    assert "sky" in str(split) and "44.12" in str(split)
    Image.new("RGB", (3, 3)).save(raw.image("first.jpg"))
    with pytest.raises(DataFaults, match="has 3x3 pixels, its annotation 8x6"):
        check_data([raw.described()], workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_images_that_would_be_scaled_to_nothing(raw, kind):
    """The config's sizes count; without one Detectron2's, which panoptic models have."""
    inputs = get_cfg().INPUT
    assert {key: inputs[key] for key in DETECTRON2S_SIZES} == DETECTRON2S_SIZES
    raw.add(30, "thin.png", "thin.png", np.full((1, 2667), 9), [{"id": 9, "category_id": SKY}])
    if kind == "panoptic":
        file = raw.described()
        with pytest.raises(DataFaults, match=r"thin.png: the image of 2667x1 .* 1333 .*_TRAIN"):
            check_data([file], workers=1)
    else:
        for path in raw.png("").rglob("*.png"):
            write_label_png(path, np.zeros(read_panoptic_png(path).shape, np.uint8))
        split = SemanticSplit(raw.image(""), raw.png(""))
        file = raw.folder / "thin.yaml"
        write_data_file(file, "thin", {"train": split}, classes=["a", "b"])
        check_data([file], workers=1)
    names = register_data_files([file])
    with pytest.raises(DataFaults, match="1 fault"):
        check_data_sets(names, 1, inputs=inputs)
    inputs.MAX_SIZE_TRAIN = inputs.MAX_SIZE_TEST = 1334
    check_data_sets(names, 1, inputs=inputs)
    inputs.MAX_SIZE_TEST = 1000
    with pytest.raises(DataFaults, match="INPUT.MAX_SIZE_TEST"):
        check_data_sets(names, 1, inputs=inputs)
    inputs.MIN_SIZE_TEST = 0
    check_data_sets(names, 1, inputs=inputs)


def test_an_index_of_semantic_data_is_written_once(raw):
    """Processes that start together would have each other's replaced by one without checks."""
    file = raw.folder / "sem.yaml"
    for path in raw.png("").rglob("*.png"):
        write_label_png(path, np.ones(read_panoptic_png(path).shape, np.uint8))
    split = SemanticSplit(raw.image(""), raw.png(""))
    write_data_file(file, "sem", {"train": split}, classes=["a", "b"])
    (name,) = register_data_files([file])
    first = DatasetCatalog[name].index()
    written = first.path.stat()
    DatasetCatalog[name].index()
    assert first.path.stat().st_ino == written.st_ino


def test_labels_that_are_all_ignored(raw):
    file, labels = raw.folder / "sem.yaml", sorted(raw.png("").rglob("*.png"))
    split = SemanticSplit(raw.image(""), raw.png(""))
    write_data_file(file, "sem", {"train": split}, classes=["a", "b"])
    for path in labels:
        write_label_png(path, np.full(read_panoptic_png(path).shape, 255, np.uint8))
    (fault,) = faults_of(check_data, [file], 1)
    assert fault.startswith(f"{raw.png('')}: all pixels of all label PNGs are ignored")
    write_label_png(labels[1], np.ones(read_label_png(labels[1]).shape, np.uint8))
    check_data([file], workers=1)


def test_what_is_too_thin_is_what_detectron2_scales_to_nothing():
    inputs, rng = get_cfg().INPUT, np.random.default_rng(0)
    inputs.MAX_SIZE_TEST = 40
    for _ in range(2000):
        height, long = int(rng.integers(1, 9)), int(rng.integers(1, 1000))
        inputs.MIN_SIZE_TEST = int(rng.integers(1, 100))
        scaled = ResizeShortestEdge.get_output_shape(height, long, inputs.MIN_SIZE_TEST, 40)
        assert (size_fault(height, long, inputs, "TEST") is None) == (min(scaled) > 0)
