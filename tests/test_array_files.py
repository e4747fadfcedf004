"""Images of any number of channels: what files hold is what is read, and nothing else passes."""

from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from ocr_panoptic.formats.pictures import (
    MAX_MEGAPIXELS,
    TURNS,
    as_colours,
    header_size,
    read_picture,
    read_size,
    reordered,
)

DATA = Path(__file__).parent / "array_files"  # written by GDAL and tifffile, see its README


def values(channels: int, dtype: str = "uint8") -> np.ndarray:
    """Return what the committed files hold, [5, 7, C]: no two values alike."""
    scale = {"uint8": 1, "uint16": 300, "int16": -100, "float32": 0.37}[dtype]
    return (np.arange(5 * 7 * channels).reshape(5, 7, channels) * scale).astype(dtype)


@pytest.mark.parametrize("channels", [1, 2, 4, 6])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", ">f4", "float64"])
def test_numpy_files(tmp_path, channels, dtype):
    array = values(channels).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    found = read_picture(tmp_path / "a.npy", "RGB", channels)
    assert found.dtype == ("uint8" if dtype == "uint8" else "float32")
    np.testing.assert_array_equal(found, array)
    assert header_size(tmp_path / "a.npy")[:2] == (7, 5)
    assert read_size(tmp_path / "a.npy", channels)[:2] == (7, 5)


def test_numpy_files_of_colours_and_of_one_channel(tmp_path):
    """NumPy files need no other setting; two dimensions are one channel."""
    np.save(tmp_path / "rgb.npy", values(3))
    np.testing.assert_array_equal(read_picture(tmp_path / "rgb.npy"), values(3)[:, :, ::-1])
    np.save(tmp_path / "one.npy", values(1)[:, :, 0])
    np.testing.assert_array_equal(read_picture(tmp_path / "one.npy", "BGR", 1), values(1))


FILES = sorted(DATA.glob("*.tif"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_tiff_files_of_other_programs(path):
    """Planes and pixels, strips and tiles, with and without compression, and a page for each."""
    pytest.importorskip("pyvips")
    _, dtype, channels = path.stem.split("_")
    channels = int(channels)
    found = read_picture(path, "RGB", channels)
    assert found.dtype == ("uint8" if dtype == "uint8" else "float32")
    np.testing.assert_array_equal(found, values(channels, dtype).astype("float32"))
    assert header_size(path, channels)[:2] == read_size(path, channels)[:2] == (7, 5)
    with pytest.raises(ValueError, match=f"{path.name}: image has {channels} channels, expected 5"):
        read_picture(path, "RGB", 5)


def test_there_are_tiff_files():
    assert len(FILES) == 9


def test_pillows_files(tmp_path):
    """The fourth channel of a PNG with opacity, 16 bits in grey."""
    Image.fromarray(values(4)).save(tmp_path / "rgba.png")
    np.testing.assert_array_equal(read_picture(tmp_path / "rgba.png", "RGB", 4), values(4))
    grey = values(1, "uint16")
    Image.fromarray(grey[:, :, 0]).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(read_picture(tmp_path / "grey.png", "RGB", 1), grey)
    Image.fromarray(values(3)).save(tmp_path / "rgb.png")
    with pytest.raises(ValueError, match=r"rgb.png: image has 3 channels, expected 4 \(INPUT.CHAN"):
        read_picture(tmp_path / "rgb.png", channels=4)
    Image.fromarray(values(4), "CMYK").save(tmp_path / "print.jpg")
    with pytest.raises(ValueError, match="print.jpg: image holds CMYK, no RGB"):
        read_picture(tmp_path / "print.jpg", channels=4)


@pytest.mark.parametrize("orientation", TURNS)
def test_turned_tiff_files(tmp_path, orientation):
    """Pillow turns the same picture so."""
    pyvips = pytest.importorskip("pyvips")
    array = values(4)
    image = pyvips.Image.new_from_array(array).copy()
    image.set_type(pyvips.GValue.gint_type, "orientation", orientation)
    image.tiffsave(str(tmp_path / "a.tif"))
    with Image.open(tmp_path / "a.tif") as file:
        assert file.tag_v2[ExifTags.Base.Orientation] == orientation
    turned = np.asarray(Image.fromarray(array).transpose(TURNS[orientation]))
    np.testing.assert_array_equal(read_picture(tmp_path / "a.tif", "RGB", 4), turned)
    assert header_size(tmp_path / "a.tif", 4)[:2] == turned.shape[1::-1]


FAULTS = {
    "channels first": (np.zeros((4, 5, 7)), "has 7 channels, expected 4"),
    "objects": (np.array([[{}]]), "is no NumPy array of plain numbers"),
    "four dimensions": (np.zeros((1, 5, 7, 4)), r"holds float64 \[1, 5, 7, 4\]; expected numbers"),
    "truth values": (np.zeros((5, 7, 4), bool), r"holds bool \[5, 7, 4\]; expected numbers"),
    "nothing": (np.zeros((0, 7, 4)), r"holds float64 \[0, 7, 4\]"),
    "no numbers": (np.full((5, 7, 4), np.nan), "holds 140 values that are no finite float32"),
    "too large numbers": (np.full((5, 7, 4), 1e39), "holds 140 values that are no finite float32"),
}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("fault", FAULTS)
def test_other_arrays_are_refused(tmp_path, fault):
    array, message = FAULTS[fault]
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=f"a.npy: image {message}"):
        read_picture(tmp_path / "a.npy", channels=4)
    with pytest.raises(ValueError, match=message):
        read_size(tmp_path / "a.npy", 4)


@pytest.mark.parametrize("name", ["a.npy", "a.tif"])
def test_broken_and_missing_files(tmp_path, name):
    pytest.importorskip("pyvips")
    path = tmp_path / name
    with pytest.raises(FileNotFoundError, match=f"{name}: image not found"):
        read_picture(path, channels=4)
    if name == "a.npy":
        np.save(path, values(4))
    else:
        path.write_bytes((DATA / "gdal-lzw-planes_uint16_4.tif").read_bytes())
    whole = path.read_bytes()
    for size in (0, 20, len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=f"{name}: image is"):
            read_picture(path, channels=4)


def test_more_pixels_than_are_read(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.zeros((100, 101, 4), np.uint8))
    monkeypatch.setenv(MAX_MEGAPIXELS, "0.0101")
    assert read_picture(tmp_path / "a.npy", channels=4).shape == (100, 101, 4)
    monkeypatch.setenv(MAX_MEGAPIXELS, "0.01")
    for read in (read_picture, read_size, header_size):
        with pytest.raises(ValueError, match=f"has more than 0.01 megapixels.*{MAX_MEGAPIXELS}"):
            read(tmp_path / "a.npy", channels=4)


def test_order_of_the_channels():
    """The first three are colours; what the network sees leads back to what people see."""
    image = np.arange(5, dtype=np.uint8)[None, None]
    assert reordered(image, "BGR").ravel().tolist() == [2, 1, 0, 3, 4]
    assert reordered(image, "RGB").ravel().tolist() == [0, 1, 2, 3, 4]
    assert reordered(image[:, :, :2], "BGR").ravel().tolist() == [0, 1]
    for format in ("RGB", "BGR"):
        assert as_colours(reordered(image, format), format).ravel().tolist() == [0, 1, 2]
    assert as_colours(image[:, :, 1:3], "BGR").ravel().tolist() == [1, 1, 1]
    numbers = np.array([[[-1, 0, 1.55, 900]]], np.float32)
    assert as_colours(numbers, "RGB").ravel().tolist() == [0, 100, 255]
    assert as_colours(np.full((1, 1, 1), 7, np.float32), "RGB").ravel().tolist() == [0, 0, 0]
