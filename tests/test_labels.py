"""Label PNGs hold indices, not colours, and file labels become training labels."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data.semantic.label_space import parse_label_space
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png, write_panoptic_png
from ocr_panoptic.formats.labels import (
    apply_label_map,
    look_up,
    pixel_counts,
    read_label_image,
    read_labels,
    write_label_png,
)

MAP = {0: 255, 7: 0, 8: 1, 300: 1, 1000: 2}
WIDE = np.array([[0, 300], [459, 65535]], np.uint16)


SHAPE = np.zeros((24, 32), np.uint8)
SHAPE[4:16, 6:26] = 1
COLOURS = np.array([[128, 64, 128], [0, 128, 0]], np.uint8)
ROAD, TREE = ({"name": n, "color": c.tolist()} for n, c in zip("ab", COLOURS, strict=True))
SMOOTH = np.where(SHAPE, 255, 0).astype(np.uint8)
SMOOTH[3, 6:26], SMOOTH[4, 6:26], SMOOTH[4:16, 5] = 60, 220, 90
NUMBERED = [{"name": "a", "labels": 0}, {"name": "b", "labels": 255}]
HALF = [{"name": "a", "labels": 0}, {"name": "b", "labels": 128}]  # 255 is ignored
BLACK_AND_WHITE = [{"name": n, "color": [c] * 3} for n, c in zip("ab", (0, 255), strict=True)]
RIM = SHAPE * 128
RIM[2:4] = 255
GREYS = [{"name": name, "labels": 60 * k} for k, name in enumerate("abc")]


def palette_image(colours: np.ndarray, shape: np.ndarray = SHAPE) -> Image.Image:
    image = Image.fromarray(shape).convert("P")
    image.putpalette(colours.ravel().tolist())
    return image


@pytest.mark.parametrize(
    ("file", "image", "classes"),
    [
        *(
            (file, Image.fromarray(SHAPE).convert(mode), ["a", "b"])
            for file in ("a.png", "a.tif")
            for mode in ("L", "LA", "RGB", "RGBA", "I", "F")
            if file == "a.tif" or mode not in "IF"  # Pillow writes no such PNG
        ),
        ("a.png", Image.fromarray(SHAPE.astype(np.uint16)), ["a", "b"]),
        ("a.png", Image.fromarray(np.repeat(SHAPE[..., None], 4, 2)), ["a", "b"]),
        *((f"a.{end}", Image.fromarray(SHAPE > 0), ["a", "b"]) for end in ("png", "bmp", "tif")),
        *((f"a.{end}", Image.fromarray(SHAPE), ["a", "b"]) for end in ("gif", "bmp")),
        *(
            (f"a.{end}", Image.fromarray(SHAPE * 255), NUMBERED)
            for end in ("gif", "bmp", "tif", "jpg")
        ),
        ("a.jpg", Image.fromarray(SHAPE * 255).convert("RGB"), NUMBERED),
        *((f"a.{end}", Image.fromarray(COLOURS[SHAPE]), [ROAD, TREE]) for end in ("png", "bmp")),
        ("a.png", Image.fromarray(COLOURS[SHAPE]).convert("RGBA"), [ROAD, TREE]),
        ("a.gif", palette_image(COLOURS), [ROAD, TREE]),
        ("a.png", palette_image(COLOURS[::-1], 1 - SHAPE), [ROAD, TREE]),  # the colours count
        ("a.png", palette_image(COLOURS + 1), [ROAD, TREE]),  # other colours do not
        ("a.png", palette_image(COLOURS[[0, 0]]), [ROAD, TREE]),
        ("a.png", Image.fromarray(SHAPE), [ROAD, TREE]),
        ("a.png", Image.fromarray(SHAPE).convert("RGB"), [ROAD, TREE]),
        (
            "a.png",
            palette_image(COLOURS[::-1]),
            [{"name": "a", "labels": [[0, 128, 0]]}, {"name": "b", "labels": [[128, 64, 128]]}],
        ),
    ],
    ids=lambda value: getattr(value, "mode", None),
)
def test_common_ways_to_save_labels(tmp_path, file, image, classes):
    image.save(tmp_path / file)
    space = parse_label_space({"classes": classes}, "c")
    assert np.array_equal(read_labels(tmp_path / file, space.label_map), SHAPE)


@pytest.mark.parametrize(
    ("file", "pixels", "classes"),
    [
        ("a.jpg", COLOURS[SHAPE], [ROAD, TREE]),
        ("a.jpg", SHAPE * 128, HALF),
        ("a.jpg", SHAPE * 255, BLACK_AND_WHITE),
        ("a.bmp", SMOOTH, NUMBERED),
    ],
)
def test_values_near_labels(tmp_path, file, pixels, classes):
    Image.fromarray(pixels).save(tmp_path / file)
    space = parse_label_space({"classes": classes}, "c")
    found = read_labels(tmp_path / file, space.label_map)
    assert (found != SHAPE).mean() < 0.04 and (found != SHAPE)[6:14, 8:24].sum() == 0


TURNED = SHAPE.T.reshape(SHAPE.shape)


@pytest.mark.parametrize(
    ("file", "pixels", "classes", "message"),
    [
        ("a.png", COLOURS[SHAPE], ["a", "b"], r"the colours \[128, 64, 128\], \[0, 128, 0\]"),
        ("a.png", COLOURS[SHAPE] + 1, [ROAD, TREE], r"\[129, 65, 129\] \(\d+ pixels\).*expected"),
        ("a.tif", SHAPE + np.float32(0.5), ["a", "b"], r"value [\d.]+, expected .* 0\.\.65535"),
        ("a.tif", SHAPE.astype(np.int32) - 1, ["a", "b"], r"value -1, expected integers 0\.\."),
        ("a.tif", SHAPE.astype(np.int32) * 70000, ["a", "b"], "has the value 70000, expected"),
        ("a.png", np.stack([SHAPE, TURNED], 2), ["a", "b"], "transparency"),
        ("a.png", np.arange(0, 250, 5, np.uint8)[None], NUMBERED, "borders are smoothed"),
        ("a.jpg", SHAPE, ["a", "b"], "is in JPEG format"),
        ("a.png", SHAPE + 3 * TURNED, NUMBERED, r"3 \(\d+ pixels\), 4 .*add each"),
        (
            "a.jpg",
            np.where(SHAPE[..., None], [0, 0, 250], COLOURS[0]).astype(np.uint8),
            [ROAD, TREE],
            "is in JPEG format",
        ),
        ("a.jpg", np.repeat([[0, 127, 255]], 32, 0).repeat(8, 1).astype(np.uint8), ["a"], "JPEG"),
        ("a.jpg", RIM, HALF, "JPEG"),
        ("a.jpg", SHAPE * 60, GREYS, "A JPEG works only with two labels"),
    ],
)
def test_unclear_labels(tmp_path, file, pixels, classes, message):
    Image.fromarray(pixels).save(tmp_path / file)
    label_map = parse_label_space({"classes": [*classes, "c"] if "a" in classes else classes}, "c")
    with pytest.raises(ValueError, match=message):
        read_labels(tmp_path / file, label_map.label_map)


@pytest.mark.parametrize("labels", [np.full((2, 3), 70000), np.zeros((2, 3, 3), np.uint8)])
def test_values_outside_label_pngs_are_not_written(tmp_path, labels):
    """Pillow would write 65535 for 70000, and would write colours."""
    file = tmp_path / "a.png"
    with pytest.raises(ValueError, match=r"expected uint8 or uint16 labels \[H, W\], found "):
        write_label_png(file, labels)
    assert not file.exists()


@pytest.mark.parametrize(
    "read, write", [(read_label_image, write_label_png), (read_panoptic_png, write_panoptic_png)]
)
def test_an_interrupted_write_leaves_the_former_file(tmp_path, monkeypatch, read, write):
    path = tmp_path / "folder" / "a.png"
    write(path, WIDE)

    def save(self, file, format):
        Path(file).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", save)
    with pytest.raises(KeyboardInterrupt):
        write(path, WIDE // 2)
    assert np.array_equal(read(path), WIDE)
    assert [file.name for file in path.parent.iterdir()] == ["a.png"]


def test_label_map_by_hand():
    raw = np.array([[7, 8, 300], [0, 1000, 7]], np.uint16)
    labels = apply_label_map(raw, MAP)
    assert labels.tolist() == [[0, 1, 1], [255, 2, 0]] and labels.dtype == np.uint8
    labels = apply_label_map(np.array([[1, 0]], np.uint8), {0: 65535, 1: 299})
    assert labels.tolist() == [[299, 65535]]
    assert apply_label_map(raw, None) is raw
    raw[0, 1:], raw[1, 1] = 9, 600
    expected = r"to no class: 9 \(2 pixels\), 600 .* expected 0, 7..8, 300, 1000"
    with pytest.raises(ValueError, match=expected):
        apply_label_map(raw, MAP)


@pytest.mark.parametrize("values", [1, 11, 256, 300])
def test_bytes_and_larger_integers(values):
    labels = np.random.default_rng(0).integers(0, values, (5, 7))
    labels = labels.astype(np.uint8 if values <= 256 else np.uint16)
    table = np.random.default_rng(1).integers(0, 256, values).astype(np.uint8)
    assert np.array_equal(look_up(table, labels), table[labels])
    counts = pixel_counts(labels)
    assert counts[: labels.max() + 1].tolist() == np.bincount(labels.ravel()).tolist()
    assert counts.sum() == labels.size


def test_forgotten_classes_are_not_taken_for_borders(tmp_path):
    labels = np.repeat(np.arange(4, dtype=np.uint8)[None], 60, 0).repeat(20, 1)
    Image.fromarray(labels).save(tmp_path / "a.png")
    assert np.array_equal(read_label_image(tmp_path / "a.png", {0: 0, 255: 1}), labels)


@pytest.mark.parametrize("known", [None, {0: 0, 7: 1, 15: 2, 255: 255}])
def test_numbers_in_a_jpeg_are_refused(tmp_path, known):
    labels = np.zeros((60, 90), np.uint8)
    labels[:, 30:], labels[:, 60:], labels[:2] = 7, 15, 255
    Image.fromarray(labels).save(tmp_path / "a.jpg")
    with pytest.raises(ValueError, match="JPEG"):
        read_label_image(tmp_path / "a.jpg", known)


def stripes(*greys: float, noise: int = 0) -> np.ndarray:
    pixels = np.repeat(np.repeat(greys, 160 // len(greys))[None], 80, 0)
    pixels = pixels + np.random.default_rng(0).integers(-noise, noise + 1, pixels.shape)
    return pixels.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("known", [{0: 0, 255: 1}, {0: 0, 1: 1, 255: 255}])
@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (stripes(30, 220), (0, 255)),
        (stripes(20, 128), (0, 255)),
        (stripes(75, 190, noise=20), (0, 255)),
        (stripes(12, noise=12), (0,)),  # no object
        (stripes(0, 85, 170, 255), None),
        (stripes(0, 0, 100, 255), None),
        (stripes(60, noise=60), None),  # a photo
    ],
)
def test_jpeg_masks_of_two_values(tmp_path, pixels, expected, known):
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=90)
    if expected is None:
        with pytest.raises(ValueError, match="JPEG"):
            read_label_image(tmp_path / "a.jpg", known)
    else:
        found = read_label_image(tmp_path / "a.jpg", known)
        assert np.array_equal(found, np.repeat([expected], 160 // len(expected), 1).repeat(80, 0))
