"""Label PNGs hold indices, not colours, of 8 or 16 bits."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.formats.coco_panoptic import read_panoptic_png, write_panoptic_png
from ocr_panoptic.formats.labels import read_label_png, write_label_png

LABELS = np.array([[0, 1, 7], [255, 7, 7]], np.uint8)


@pytest.mark.parametrize("palette", [None, [200, 10, 10] * 256])
def test_eight_bits(tmp_path, palette):
    """Converted to grey, a palette would turn every label into its colour's brightness."""
    image = Image.fromarray(LABELS)
    if palette:
        image = image.convert("P")
        image.putpalette(palette)
    image.save(tmp_path / "a.png")
    assert np.array_equal(read_label_png(tmp_path / "a.png"), LABELS)


def test_sixteen_bits_and_one(tmp_path):
    wide = np.array([[0, 300], [459, 65535]], np.uint16)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert np.array_equal(read_label_png(tmp_path / "wide.png"), wide)
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "bits.png")
    bits = read_label_png(tmp_path / "bits.png")
    assert bits.tolist() == [[1, 0]]
    assert bits.dtype == np.uint8


def test_missing_and_broken(tmp_path):
    path = tmp_path / "a.png"
    with pytest.raises(FileNotFoundError, match=r"a\.png: label PNG not found"):
        read_label_png(path)
    Image.fromarray(np.random.default_rng(0).integers(0, 9, (50, 50), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"a\.png: label PNG is broken or truncated"):
        read_label_png(path)


def test_several_channels(tmp_path):
    Image.new("RGB", (4, 2)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"expected one channel .* found \[2, 4, 3\]"):
        read_label_png(tmp_path / "a.png")


@pytest.mark.parametrize("labels", [LABELS, np.array([[0, 300], [459, 65535]], np.uint16)])
def test_what_is_written_is_read(tmp_path, labels):
    path = tmp_path / "folder" / "a.png"
    write_label_png(path, labels)
    found = np.asarray(Image.open(path))
    assert found.dtype == labels.dtype
    assert np.array_equal(found, labels)
    assert np.array_equal(read_label_png(path), labels)


@pytest.mark.parametrize(
    "read, write",
    [(read_label_png, write_label_png), (read_panoptic_png, write_panoptic_png)],
)
def test_an_interrupted_write_leaves_the_former_file(tmp_path, monkeypatch, read, write):
    path = tmp_path / "a.png"
    write(path, LABELS)

    def save(self, file, format):
        Path(file).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", save)
    with pytest.raises(KeyboardInterrupt):
        write(path, LABELS + 1)
    assert np.array_equal(read(path), LABELS)
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize("labels", [LABELS.astype(np.int64), LABELS[None]])
def test_what_is_no_label_map_is_not_written(tmp_path, labels):
    with pytest.raises(ValueError, match=r"a\.png: expected labels uint8 or uint16 .*, found"):
        write_label_png(tmp_path / "a.png", labels)
    assert not list(tmp_path.iterdir())
