"""The images that a command line names."""

import errno
import os
import threading
from pathlib import Path

import pytest
from PIL import Image

from ocr_panoptic.data.semantic.records import LabelledFolder
from ocr_panoptic.predict.sources import ahead, find_inputs, images_below, read_items
from ocr_panoptic.workbench.importing.reading import files_below


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    names = ["a/2.jpg", "a/1.PNG", "a/notes.txt", "a/deep/3.jpg", "a/deep/1.PNG", "b/1.PNG"]
    for name in (*names, "b/x[1].jpg", "b/scan", "b/scan.png", "a/.cache/2.jpg", "a/.2.jpg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "a/folder.png").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("a", ["a/1.PNG", "a/2.jpg", "a/deep/1.PNG", "a/deep/3.jpg"]),
        ("b/x[1].jpg", ["b/x[1].jpg"]),
        ("list.txt", ["b/scan.png", "a/gone.jpg", "a/2.jpg"]),
    ],
)
def test_files_folders_and_lists(folder, entry, expected):
    (folder / "list.txt").write_text("\ufeffb/scan.png\n\na/gone.jpg\na/2.jpg\nb/scan.png\n")
    for name in (entry, folder / entry):
        inputs = find_inputs(name)
        assert [item.source for item in inputs.items] == [folder / path for path in expected]
        assert inputs.entry == folder / entry


def test_folders_that_cannot_be_read_are_reported(folder, monkeypatch):
    def scan(path):
        if str(path).endswith("deep"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", scan)
    for search in (images_below, files_below, lambda path: LabelledFolder(path, None).unlabelled()):
        with pytest.raises(PermissionError, match="deep"):
            search(folder / "a")


def test_every_file_is_an_image_or_left_out(folder):
    for name in ("x.gif", "x.JP2", "x.avif", "x.ppm", "x.heic", "x.dng", "x.zip", "x"):
        (folder / "empty" / name).touch()
    (folder / "empty/gone.jpg").symlink_to("nowhere")
    os.mkfifo(folder / "empty/pipe.png")
    images, others = images_below(folder / "empty")
    assert {path.name for path in images} == {
        *("x.gif", "x.JP2", "x.avif", "x.ppm", "x.heic", "x.dng")
    }
    assert {path.name: why for path, why in others.items()} == {
        **{"gone.jpg": "not a file", "pipe.png": "not a file"},
        "x": "unsupported suffix (none)",
        "x.zip": "unsupported suffix (.zip)",
    }
    for path in images:
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"no images. 4 file\(s\) left out: 2 x not a file"):
        images_below(folder / "empty")


def test_results_below_the_images(folder):
    with pytest.raises(ValueError, match="--output a/../a is the folder of the images.*a/results"):
        find_inputs("a", "a/../a")
    (folder / "a/drawn").mkdir()
    (folder / "a/drawn/x.png").touch()
    assert len(find_inputs("a", "a/drawn").items) == 4


def test_links_are_followed_once(folder):
    (folder / "b/more").symlink_to(folder / "a/deep")
    (folder / "b/more/loop").symlink_to(folder / "b")
    found = [item.file_name for item in find_inputs("b").items]
    assert found == ["1.PNG", "more/1.PNG", "more/3.jpg", "scan.png", "x[1].jpg"]


@pytest.mark.parametrize(
    "files, names",
    [
        (["a.jpg", "b.png"], ["a", "b"]),
        (["A.png", "a.jpg", "b.png"], ["A.png", "a.jpg", "b"]),
        (["a.jpg", "a.jpg.bmp", "a.png"], ["a.jpg", "a.jpg.bmp", "a.png"]),
        (chain := ["a.jpg", "a.jpg.bmp", "a.jpg.bmp.png", "a.png"], chain),
        (["a.jpg", "c/a.jpg", "c/a.png"], ["a", "c/a.jpg", "c/a.png"]),
        (["A.jpg", "a.jpg"], ["A.jpg", "a.jpg"]),
    ],
)
def test_names_of_results_are_unique(tmp_path, files, names):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert [item.name for item in find_inputs(tmp_path).items] == names


def test_an_unreadable_image_keeps_its_place(tmp_path):
    for name in ("a.png", "c.png"):
        Image.new("L", (4, 3), ord(name[0])).save(tmp_path / name)
    (tmp_path / "b.png").write_text("no image")
    found = [image for _, image in read_items(find_inputs(tmp_path).items, "RGB")]
    assert (found[0] == ord("a")).all() and (found[2] == ord("c")).all()
    assert "b.png: the image is in an unknown format" in str(found[1])


def test_results_ahead_come_in_order_until_an_error():
    begun, taken, lock = [], [], threading.Lock()

    def double(item):
        if item == 50:
            raise OSError("full")
        with lock:
            begun.append(item)
        return 2 * item

    with pytest.raises(OSError, match="full"):
        for result in ahead(double, range(1000), threads=3):
            taken.append(result)
            assert len(begun) <= len(taken) + 6  # at most this many are in progress
    assert taken == list(range(0, 100, 2))
