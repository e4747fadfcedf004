"""Images and PNGs row by row, against Pillow."""

import os
import threading

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.engine.inputs import ahead
from ocr_panoptic.engine.rows import KeptRows, PngRows, is_large, open_image
from ocr_panoptic.formats.pictures import MAX_MEGAPIXELS, read_picture


def picture(*shape: int, top: int = 255) -> np.ndarray:
    return np.random.default_rng(0).integers(0, top, shape)


@pytest.mark.parametrize(
    "shape, dtype", [((50, 33), np.uint8), ((50, 33), np.uint16), ((50, 33, 3), np.uint8)]
)
def test_png_of_rows(tmp_path, shape, dtype):
    rows = picture(*shape, top=np.iinfo(dtype).max).astype(dtype)
    with PngRows(tmp_path / "x.png", 50, 33, dtype, is_grey=len(shape) == 2) as png:
        for part in np.split(rows, [1, 20, 21]):
            png.write(part)
    found = np.asarray(Image.open(tmp_path / "x.png"))
    assert found.dtype == dtype and np.array_equal(found, rows)


@pytest.mark.parametrize("library", ["pillow", "pyvips"])
@pytest.mark.parametrize(
    "mode, name, options",
    [
        ("RGB", "x.png", {}),
        ("RGB", "x.jpg", {"quality": 90}),
        ("RGB", "turned.jpg", {"quality": 90, "turn": 6}),
        ("L", "x.png", {}),
        ("RGBA", "x.png", {}),
        ("RGB", "x.tif", {"compression": "tiff_deflate"}),
        ("P", "x.png", {}),
        ("I;16", "x.png", {}),
    ],
)
def test_rows_of_an_image(tmp_path, monkeypatch, library, mode, name, options):
    """The pixels that the whole image has, in either channel order, for rows that overlap."""
    if library == "pyvips":
        pytest.importorskip("pyvips")
    else:
        monkeypatch.setitem(__import__("sys").modules, "pyvips", None)
    if mode == "I;16":
        image = Image.fromarray(picture(90, 40, top=65536).astype(np.uint16))
    else:
        image = Image.fromarray(picture(90, 40, 4).astype(np.uint8)).convert(mode)
    if turn := options.pop("turn", None):
        exif = Image.Exif()
        exif[274] = turn
        options["exif"] = exif
    image.save(tmp_path / name, **options)
    for order in ("RGB", "BGR"):
        read, height, width = open_image(tmp_path / name, order)
        expected = read_picture(tmp_path / name, order)
        assert (height, width) == expected.shape[:2]
        for rows in (read(), read()):
            for top, bottom in ((0, 20), (10, 33), (30, height)):
                found = rows(top, bottom).numpy().transpose(1, 2, 0)
                assert np.array_equal(found, expected[top:bottom])


def test_a_broken_image(tmp_path):
    pytest.importorskip("pyvips")
    Image.fromarray(picture(900, 400, 3).astype(np.uint8)).save(tmp_path / "x.png")
    content = (tmp_path / "x.png").read_bytes()
    (tmp_path / "x.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="x.png: image is broken or truncated"):
        read, height, _ = open_image(tmp_path / "x.png", "RGB")
        read()(0, height)


def test_large_images(tmp_path, monkeypatch):
    """Beyond what Pillow would decode, too; a pipe is not waited for."""
    Image.new("L", (50, 40)).save(tmp_path / "x.png")
    assert not is_large(tmp_path / "x.png", 2000) and is_large(tmp_path / "x.png", 1999)
    monkeypatch.setenv(MAX_MEGAPIXELS, "0.001")
    assert is_large(tmp_path / "x.png", 10**9)
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("pipe.png", "gone.png"):
        assert not is_large(tmp_path / name, 0)


class TestAhead:
    def test_order_and_number_under_way(self):
        begun, lock = [], threading.Lock()

        def slow(item):
            with lock:
                begun.append(item)
            return 2 * item

        taken = []
        for result in ahead(slow, range(50), threads=3):
            taken.append(result)
            assert len(begun) <= len(taken) + 6
        assert taken == list(range(0, 100, 2))

    def test_an_error_ends_it(self):
        def failing(item):
            if item == 3:
                raise OSError("full")
            return item

        taken = []
        with pytest.raises(OSError, match="full"):
            taken.extend(iter_to(taken, ahead(failing, range(1000))))
        assert taken == [0, 1, 2]


def iter_to(taken: list, results):
    """Keeps what came before an error."""
    for result in results:
        taken.append(result)
    return []


def test_kept_rows_come_back_in_their_order(tmp_path):
    arrays = [picture(3, 5), picture(3, 5).astype(np.uint8), picture(2, 5), picture(0, 5)]
    with KeptRows(tmp_path) as kept:
        kept.write(*arrays[:2])
        kept.write(*arrays[2:])
        found = [*kept.read()]
    assert all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(arrays, found))
    assert len(found) == 4 and not [*tmp_path.iterdir()]
