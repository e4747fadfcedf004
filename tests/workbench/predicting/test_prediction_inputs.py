"""Inputs that a command line names to be predicted."""

import logging
import time
from pathlib import Path

import pytest
from PIL import Image

from ocr_panoptic.engine import inputs as inputs_module
from ocr_panoptic.engine.inputs import ImageFiles, find_inputs
from ocr_panoptic.formats.pictures import num_frames
from ocr_panoptic.workbench.predicting.folder import write_reasons


@pytest.mark.parametrize(
    "files, names",
    [
        (["a.jpg", "b.png"], ["a", "b"]),
        (["a.jpg", "A.png", "b.png"], ["a.jpg", "A.png", "b"]),
        (["a.jpg", "a.jpg.bmp", "a.png"], ["a.jpg", "a.jpg.bmp", "a.png"]),
        (
            ["a.jpg", "a.jpg.bmp", "a.jpg.bmp.png", "a.png"],
            ["a.jpg", "a.jpg.bmp", "a.jpg.bmp.png", "a.png"],
        ),
        (["a.jpg", "c/a.jpg", "c/a.png"], ["a", "c/a.jpg", "c/a.png"]),
        (["a.jpg", "A.jpg"], ["a.jpg", "A.jpg"]),
    ],
)
def test_names(tmp_path, files, names):
    inputs = ImageFiles(tmp_path, tmp_path, [tmp_path / file for file in files], 100)
    assert [item.name for item in inputs.items] == names


def test_animated_images_are_told_of_once(tmp_path, caplog, monkeypatch):
    """A single message of several threads that read."""

    def slow(path: Path) -> int:
        count = num_frames(path)
        time.sleep(0.1)  # until all threads have asked
        return count

    monkeypatch.setattr(inputs_module, "num_frames", slow)
    frames = [Image.new("L", (4, 3), value) for value in (1, 99)]
    for name in ("a.gif", "b.gif", "c.gif"):
        frames[0].save(tmp_path / name, save_all=name != "a.gif", append_images=frames[1:])
    inputs = find_inputs(str(tmp_path), None, 100)
    with caplog.at_level(logging.WARNING):
        found = [image for _, image in inputs.read(inputs.items, "RGB")]
    assert [(image == 1).all() for image in found] == [True] * 3
    (record,) = caplog.records
    assert ".gif has 2 frames; of it, and of others like it, the first" in record.getMessage()


def test_names_with_line_ends_are_one_line(tmp_path):
    write_reasons(tmp_path / "list.txt", [("a\nb.png", "is\nbroken")])
    assert (tmp_path / "list.txt").read_text() == "a\\nb.png\tis\\nbroken\n"
    write_reasons(tmp_path / "list.txt", [])
    assert not (tmp_path / "list.txt").exists()
