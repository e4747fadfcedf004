"""Label PNGs hold indices, not colours; labels of files become those of training."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.formats.coco_panoptic import read_panoptic_png, write_panoptic_png
from ocr_panoptic.formats.labels import (
    apply_label_map,
    look_up,
    pixel_counts,
    read_label_png,
    write_label_png,
)

MAP = {0: 255, 7: 0, 8: 1, 300: 1, 1000: 2}
LABELS = np.array([[0, 1, 7], [255, 7, 7]], np.uint8)
WIDE = np.array([[0, 300], [459, 65535]], np.uint16)


@pytest.mark.parametrize("labels", [LABELS, WIDE, np.array([[True, False]]), "palette"])
def test_what_others_write(tmp_path, labels):
    """Converted to grey, a palette would turn every label into its colour's brightness."""
    image = Image.fromarray(LABELS if isinstance(labels, str) else labels)
    if isinstance(labels, str):
        image, labels = image.convert("P"), LABELS
        image.putpalette([200, 10, 10] * 256)
    image.save(tmp_path / "a.png")
    found = read_label_png(tmp_path / "a.png")
    assert np.array_equal(found, labels)
    assert found.dtype == (np.uint8 if labels.dtype == bool else labels.dtype)


def test_several_channels(tmp_path):
    Image.new("RGB", (4, 2)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"expected one channel .* found \[2, 4, 3\]"):
        read_label_png(tmp_path / "a.png")


@pytest.mark.parametrize("labels", [np.full((2, 3), 70000), np.zeros((2, 3, 3), np.uint8)])
def test_what_no_label_png_holds_is_not_written(tmp_path, labels):
    """Pillow would write 65535 for 70000, and colours."""
    file = tmp_path / "a.png"
    with pytest.raises(ValueError, match=r"expected labels uint8 or uint16 \[H, W\], found "):
        write_label_png(file, labels)
    assert not file.exists()


@pytest.mark.parametrize("labels", [LABELS, WIDE])
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


def test_label_map_by_hand():
    raw = np.array([[7, 8, 300], [0, 1000, 7]], np.uint16)
    labels = apply_label_map(raw, MAP)
    assert labels.tolist() == [[0, 1, 1], [255, 2, 0]] and labels.dtype == np.uint8
    labels = apply_label_map(np.array([[1, 0]], np.uint8), {0: 65535, 1: 299})
    assert labels.tolist() == [[299, 65535]]
    assert apply_label_map(raw, None) is raw
    raw[0, 1:], raw[1, 1] = 9, 600
    expected = r"lacks: 9 \(2 pixels\), 600 .* expected 0, 7..8, 300, 1000"
    with pytest.raises(ValueError, match=expected):
        apply_label_map(raw, MAP)


@pytest.mark.parametrize("values", [1, 11, 256, 300])
def test_bytes_and_others_alike(values):
    labels = np.random.default_rng(0).integers(0, values, (5, 7))
    labels = labels.astype(np.uint8 if values <= 256 else np.uint16)
    table = np.random.default_rng(1).integers(0, 256, values).astype(np.uint8)
    assert np.array_equal(look_up(table, labels), table[labels])
    counts = pixel_counts(labels)
    assert counts[: labels.max() + 1].tolist() == np.bincount(labels.ravel()).tolist()
    assert counts.sum() == labels.size
