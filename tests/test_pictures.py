"""The common reader of image files, compared with Detectron2 and with numbers by hand."""

import os
import re
import struct
import subprocess
import sys
import zlib
from contextlib import nullcontext

import numpy as np
import pytest
from detectron2.data.detection_utils import read_image
from detectron2.data.transforms import ResizeShortestEdge
from PIL import ExifTags, Image

from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from ocr_panoptic.formats.files import printable
from ocr_panoptic.formats.labels import read_label_image
from ocr_panoptic.formats.pictures import (
    as_colours,
    header_size,
    read_picture,
    read_size,
    reordered,
    thin_fault,
)
from support.tiny_runs import ROOT

ORIENTATION = ExifTags.Base.Orientation


def png_chunk(kind: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + check


def write_png(path, width, height, depth, colours, rows: bytes) -> None:
    """Write a PNG by the format's rules; rows begin with filter byte 0."""
    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks))


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (4, 7, 3), np.uint8)


@pytest.mark.parametrize("format", ["BGR", "RGB", "L", "YUV-BT.601"])
@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "CMYK"])
def test_equals_detectron2s_for_8_bits(tmp_path, pixels, mode, format):
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.fromarray(pixels).convert(mode).save(path)
    np.testing.assert_array_equal(read_picture(path, format), read_image(str(path), format))


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
@pytest.mark.parametrize("orientation", [None, *range(1, 9), 99])
def test_every_orientation(tmp_path, suffix, orientation):
    """The EXIF value says which side of the scene the first row and column are."""
    scene = np.zeros((16, 24), np.uint8)
    scene[:8, :8] = 255  # the upper left corner
    turned = scene.T
    stored = [scene, scene[:, ::-1], scene[::-1, ::-1], scene[::-1]]
    stored += [turned, turned[::-1], turned[::-1, ::-1], turned[:, ::-1]]
    stored = dict(enumerate(stored, 1)).get(orientation, scene)
    exif = Image.Exif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
    path = tmp_path / f"a{suffix}"
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif)
    # JPEG loses some precision.
    assert np.abs(read_picture(path, "L")[..., 0].astype(int) - scene).max() < 9
    for size in (read_size(path), header_size(path)):
        assert (size.width, size.height) == (24, 16)


RAMP = np.arange(65536, dtype=np.uint16).reshape(256, 256)


@pytest.mark.parametrize(
    "name", ["I;16.png", "I;16.tif", "I;16B.tif", "I.pgm", "I;16.jp2", "12 bits.tif", "RGB.png"]
)
def test_16_bits_are_scaled(tmp_path, name):
    """Detectron2's reader has 99.6 % of a ramp over 16 bits at 255."""
    path = tmp_path / name
    if name == "I;16B.tif":
        Image.frombytes("I;16B", (256, 256), RAMP.astype(">u2").tobytes()).save(path)
    elif name == "RGB.png":
        rows = RAMP[..., None].repeat(3, 2).astype(">u2")
        write_png(path, 256, 256, 16, 2, b"".join(b"\0" + row.tobytes() for row in rows))
    elif name == "12 bits.tif":  # two pixels of 12 bits in three bytes
        high, low = (RAMP[:, 0::2] >> 4).astype(int), (RAMP[:, 1::2] >> 4).astype(int)
        packed = np.stack([high >> 4, (high & 15) << 4 | low >> 8, low & 255], axis=-1)
        data = packed.astype(np.uint8).tobytes()
        tags = [(256, 256), (257, 256), (258, 12), (259, 1), (262, 1), (273, 256), (277, 1)]
        tags += [(278, 256), (279, len(data))]
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
        head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0)
        path.write_bytes(head.ljust(256, b"\0") + data)
    else:
        Image.fromarray(RAMP).save(path)
    with Image.open(path) as image:
        assert image.mode.startswith("I") or name == "RGB.png"
    found = read_picture(path)
    assert found.shape == (256, 256, 3) and found.dtype == np.uint8
    # The first column holds the number of its row: 256 values, 256 pixels each.
    np.testing.assert_array_equal(found, np.arange(256)[:, None, None].repeat(256, 1).repeat(3, 2))
    read_size(path)


def test_turned_pngs(tmp_path, pixels):
    """They have 16 bits, or EXIF data after their pixels."""
    exif, path = Image.Exif(), tmp_path / "a.png"
    exif[ORIENTATION] = 6
    Image.fromarray(RAMP[:, :8]).save(path, exif=exif)
    assert read_picture(path, "L")[0, :, 0].tolist() == [*range(255, -1, -1)]
    Image.fromarray(pixels).save(path, exif=exif)
    content = path.read_bytes()
    start, end = (content.index(kind) - 4 for kind in (b"eXIf", b"IDAT"))
    path.write_bytes(content[:start] + content[end:-12] + content[start:end] + content[-12:])
    np.testing.assert_array_equal(read_picture(path, "RGB"), np.rot90(pixels, -1))
    assert read_size(path)[:2] == (4, 7)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("read", [read_picture, read_size, header_size])
def test_numbers_without_a_white_are_refused(tmp_path, dtype, read):
    path = tmp_path / "a.tif"
    Image.fromarray(np.full((3, 4), 300, dtype)).save(path)
    with pytest.raises(ValueError, match=r"contains .*whose range is unknown. Convert it") as e:
        read(path)
    assert str(e.value).startswith(f"{path}: the image ") == (read is read_picture)


def tiff(*pages: dict[int, int]) -> bytes:
    """Return a TIFF file of pages of 4x3 grey pixels; each page gives tags in place of these."""
    content, links = b"II*\0" + bytes(4), [4]
    for page in pages:
        tags = {256: 4, 257: 3, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 3, 279: 12} | page
        entries = [struct.pack("<HHII", key, 4, 1, value) for key, value in sorted(tags.items())]
        place = struct.pack("<I", len(content) + 60)  # 60 bytes of pixels
        content = content[: links[-1]] + place + content[links[-1] + 4 :] + bytes(60)
        content += struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
        links.append(len(content) - 4)
    return content


@pytest.mark.parametrize("read", [read_picture, header_size, read_label_image])
@pytest.mark.parametrize(
    "pages, fault",
    [
        ([{}], ""),
        ([{}, {254: 1}, {254: 4, 258: 1}, {256: 2, 257: 1}], ""),  # previews and a mask
        ([{}, {254: 2}, {}], "has 3 pages of 4x3 pixels"),
        ([{277: 5, 279: 60}], "is a 5-channel TIFF file with 8 bits per channel, which cannot"),
    ],
)
def test_pages_and_channels_of_tiff_files(tmp_path, read, pages, fault):
    path = tmp_path / "a.tif"
    path.write_bytes(tiff(*pages))
    with pytest.raises(ValueError, match=fault) if fault else nullcontext():
        read(path)


NOISE = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
FAULTY_FILES = (
    *((f"a{end}", keep, "broken or truncated") for end in (".jpg", ".png") for keep in (0.5, 20)),
    *(("a.png", content, "broken or truncated") for content in (b"no image", b"")),
    ("a.png", "60000 x 60000", "more than 178.957 megapixels.*MAX_MEGA"),  # a file of few bytes
    ("a\x1b[2J\n.png", b"no image", "broken"),
    ("a.png", os.mkdir, r"cannot be read \(Is a directory\)"),
    ("a.png", POSTSCRIPT, "unknown format"),  # Pillow would let Ghostscript run this program
)


@pytest.mark.parametrize("read", [read_picture, read_label_image, read_panoptic_png])
@pytest.mark.parametrize("name, content, fault", FAULTY_FILES)
def test_faulty_files(tmp_path, read, name, content, fault):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif callable(content):
        content(path)
    elif isinstance(content, str):
        write_png(path, 60000, 60000, 8, 2, b"")
    else:
        Image.fromarray(NOISE).save(path)
        size = path.stat().st_size
        os.truncate(path, int(content * size) if content < 1 else content)
    with pytest.raises(ValueError, match=rf"{re.escape(printable(path))}: .*{fault}") as error:
        read(path)
    assert str(error.value).isprintable()  # a name cannot control the terminal
    with pytest.raises(FileNotFoundError, match="not found"):
        read(str(tmp_path / "none.png"))


def test_another_limit(tmp_path):
    for width in (190, 200):
        Image.new("RGB", (width, 100)).save(tmp_path / f"{width}.png")
    program = "import sys; from ocr_panoptic.formats.pictures import read_size as r; "
    program += "r(sys.argv[1]); print('read'); r(sys.argv[2])"
    command = [sys.executable, "-c", program, *(tmp_path / f"{w}.png" for w in (190, 200))]
    environment = {**os.environ, "OCR_PANOPTIC_MAX_MEGAPIXELS": "0.019"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 1 and done.stdout == "read\n"
    assert "has more than 0.019 megapixels" in done.stderr


@pytest.mark.parametrize("read", [read_label_image, read_panoptic_png])
@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_labels_with_lossy_compression(tmp_path, pixels, read, kind):
    Image.fromarray(pixels).save(tmp_path / "a.png", kind)
    with pytest.raises(ValueError, match=f"a.png: .* is in {kind} format"):
        read(tmp_path / "a.png")


@pytest.mark.parametrize("suffix", [".heic", ".DNG"])
def test_refused_raw_photos(tmp_path, pixels, suffix):
    """A DNG is a TIFF with a preview, which is not the photo."""
    Image.fromarray(pixels).save(tmp_path / f"a{suffix}", "TIFF")
    with pytest.raises(ValueError, match=rf"a{suffix}: the image has the format {suffix}, which"):
        read_picture(tmp_path / f"a{suffix}")


def test_one_and_four_channels(tmp_path):
    """Opacity is a channel; 16-bit grey stays unchanged."""
    values = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)
    Image.fromarray(values).save(tmp_path / "rgba.png")
    Image.fromarray(values[:, :, :3]).save(tmp_path / "rgb.png")
    Image.fromarray(values[:, :, 0]).save(tmp_path / "grey.png")
    Image.fromarray(RAMP).save(tmp_path / "wide.png")
    Image.fromarray(values, "CMYK").save(tmp_path / "print.jpg")
    Image.fromarray(values).save(tmp_path / "alpha.tif")
    alpha, none = (struct.pack("<HHII", 338, 3, 1, kind) for kind in (2, 0))  # ExtraSamples
    tiff = (tmp_path / "alpha.tif").read_bytes()
    (tmp_path / "unspecified.tif").write_bytes(tiff.replace(alpha, none))
    assert np.array_equal(read_picture(tmp_path / "alpha.tif", "RGB", 4), values)
    assert np.array_equal(read_picture(tmp_path / "rgba.png", "RGB", 4), values)
    assert np.array_equal(read_picture(tmp_path / "rgba.png", "BGR", 4), values[..., [2, 1, 0, 3]])
    assert np.array_equal(read_picture(tmp_path / "grey.png", "BGR", 1), values[:, :, :1])
    wide = read_picture(tmp_path / "wide.png", "BGR", 1)
    assert wide.dtype == np.float32 and np.array_equal(wide[:, :, 0], RAMP)
    for name, channels, fault in (
        ("rgb.png", 4, r"has 3 channels, expected 4 \(INPUT.CHANNELS, or channels"),
        ("rgb.png", 1, "has 3 channels, expected 1"),
        ("wide.png", 4, "has 1 channel, expected 4"),
        ("print.jpg", 4, "has the colour mode CMYK; expected grey or RGB"),
        ("unspecified.tif", 4, "has a fourth channel of unspecified kind"),
    ):
        for read in (read_size, header_size):
            with pytest.raises(ValueError, match=fault):
                read(tmp_path / name, channels)
        with pytest.raises(ValueError, match=f"{name}: the image {fault}"):
            read_picture(tmp_path / name, "RGB", channels)


def test_pictures_of_any_number_of_channels():
    """The first three channels are colours; a network's input is turned back into a picture."""
    image = np.arange(4, dtype=np.uint8)[None, None]
    assert reordered(image, "BGR").ravel().tolist() == [2, 1, 0, 3]
    assert reordered(image[:, :, :1], "BGR").ravel().tolist() == [0]
    for format in ("RGB", "BGR"):
        assert as_colours(reordered(image, format), format).ravel().tolist() == [0, 1, 2]
    assert as_colours(image[:, :, 1:2], "BGR").ravel().tolist() == [1, 1, 1]
    assert as_colours(np.array([[[7], [9]]], np.float32), "RGB")[..., 0].tolist() == [[0, 255]]


def test_too_thin_images_are_those_that_detectron2_scales_to_nothing():
    rng = np.random.default_rng(0)
    for _ in range(500):
        height, width, shortest = (int(rng.integers(1, end)) for end in (9, 1000, 100))
        scaled = ResizeShortestEdge.get_output_shape(height, width, shortest, 40)
        assert (thin_fault(height, width, 40, "") is None) == (min(scaled) > 0)
