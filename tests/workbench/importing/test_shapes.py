import base64
import io
import math

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.workbench.importing.annotated_image import Segment
from ocr_panoptic.workbench.importing.masks import mask_of_pixels
from ocr_panoptic.workbench.importing.shapes import (
    ellipse,
    join_parts,
    placed,
    polygon,
    read_base64_png,
    rectangle,
)

H, W = 30, 40


def pixels_of(mask: dict) -> np.ndarray:
    return Segment("", mask).pixels()


def box(top: int, bottom: int, left: int, right: int) -> np.ndarray:
    pixels = np.zeros((H, W), bool)
    pixels[top:bottom, left:right] = True
    return pixels


def test_a_rectangle_has_the_pixels_between_its_corners():
    for corners in ((3, 4, 20, 9), (20, 9, 3, 4), (3, 9, 20, 4)):
        assert np.array_equal(pixels_of(rectangle(corners, H, W)), box(4, 9, 3, 20))


def test_a_rectangle_turns_clockwise_about_its_centre_or_another_point():
    turned = rectangle((5, 10, 19, 14), H, W, 90)  # 14 x 4 about (12, 12), by a quarter turn
    assert np.array_equal(pixels_of(turned), box(5, 19, 10, 14))
    turned = rectangle((20, 10, 34, 14), H, W, 90, pivot=(20, 10))  # about its first corner
    assert np.array_equal(pixels_of(turned), box(10, 24, 16, 20))


@pytest.mark.parametrize("rotation", [0, 30, 90, 217])
def test_an_ellipse_has_the_pixels_whose_centres_lie_in_it(rotation):
    (cx, cy), (rx, ry) = (17.3, 14.6), (12.5, 6.25)
    found = pixels_of(ellipse((cx, cy), (rx, ry), H, W, rotation))
    angle = math.radians(-rotation)
    for y in range(H):
        for x in range(W):
            dx, dy = x + 0.5 - cx, y + 0.5 - cy
            u = math.cos(angle) * dx - math.sin(angle) * dy
            v = math.sin(angle) * dx + math.cos(angle) * dy
            assert found[y, x] == ((u / rx) ** 2 + (v / ry) ** 2 <= 1)


def test_shapes_are_cut_at_the_border_of_the_image():
    assert pixels_of(rectangle((-5, -5, 45, 35), H, W)).all()
    assert pixels_of(ellipse((20, 15), (60, 60), H, W)).all()
    assert pixels_of(polygon([(-9, -9), (49, -9), (49, 39), (-9, 39)], H, W)).all()
    assert not pixels_of(rectangle((-9, -9, -2, -2), H, W)).any()


@pytest.mark.parametrize(
    "shape, reason",
    [
        (lambda: polygon([(0, 0), (1, 1), (1e9, 0)], H, W), "far outside"),
        (lambda: rectangle((0, 0, 1e6, 1), H, W), "far outside"),
        (lambda: rectangle((0, 0, 1, 1), H, W, math.inf), "rotation is inf"),
        (lambda: ellipse((0, 0), (3, 0), H, W), "radii 3 and 0"),
        (lambda: ellipse((0, 0), (3, math.nan), H, W), "radii 3 and nan"),
        (lambda: ellipse((math.nan, 0), (3, 3), H, W), "at .nan, 0."),
        (lambda: ellipse((0, 0), (math.inf, 3), H, W), "radii inf and 3"),
        (lambda: placed(np.ones((2, 3), bool), 38, 0, H, W), "3x2 pixels at x 38, y 0"),
        (lambda: placed(np.ones((2, 3), bool), 0, -1, H, W), "does not lie in the image"),
    ],
)
def test_refuses_shapes(shape, reason):
    with pytest.raises(ValueError, match=reason):
        shape()


def test_a_placed_mask_lies_where_it_is_put():
    part = np.array([[1, 0, 1], [0, 1, 0]], bool)
    found = pixels_of(placed(part, 37, 28, H, W))
    assert np.array_equal(found[28:, 37:], part) and found.sum() == 3


def png(pixels: np.ndarray, format: str = "PNG") -> str:
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, format=format)
        return base64.b64encode(file.getvalue()).decode()


def test_reads_a_png_in_base64():
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert np.array_equal(read_base64_png(png(pixels), 3, 4), pixels)


@pytest.mark.parametrize(
    "text, reason",
    [
        (None, "found NoneType"),
        ("%%%", "3x2 pixels in base64"),
        ("abcd", "3x2 pixels in base64"),
        (png(np.zeros((3, 2), np.uint8)), "PNG of 2x3 pixels is larger"),
        (png(np.zeros((2, 2), np.uint8)), "found 2x2 pixels"),
        (png(np.zeros((2, 3), np.uint8), "BMP"), "3x2 pixels in base64"),
        (png(np.zeros((2, 3), np.uint8))[:60], "3x2 pixels in base64"),
    ],
)
def test_refuses_what_is_no_png_of_the_size(text, reason):
    with pytest.raises(ValueError, match=reason):
        read_base64_png(text, 2, 3)


def segment(label: str, *columns: int) -> Segment:
    pixels = np.zeros((1, 8), bool)
    pixels[0, list(columns)] = True
    return Segment(label, mask_of_pixels(pixels))


def test_joins_the_parts_of_an_object():
    parts = [
        ("g", segment("cat", 0, 1, 2)),
        (None, segment("dog", 2, 3)),
        (None, segment("dog", 7)),
        ("g", segment("cat", 3, 4)),
        ("g", segment("tail", 5)),
        (None, segment("mat", 0)),
    ]
    found = [(s.label, np.flatnonzero(s.pixels()).tolist()) for s in join_parts(parts)]
    # The cat has the place of its second part, and lacks what the dog covers of its first.
    cat = ("cat", [0, 1, 3, 4])
    assert found == [("dog", [2, 3]), ("dog", [7]), cat, ("tail", [5]), ("mat", [0])]
    assert join_parts([]) == []


def test_joining_changes_no_pixel():
    rng = np.random.default_rng(0)
    for _ in range(50):
        parts = [
            (rng.choice([None, 1, 2]), Segment("x", mask_of_pixels(rng.random((4, 5)) < 0.4)))
            for _ in range(6)
        ]
        before, after = np.zeros((4, 5), int), np.zeros((4, 5), int)
        names: dict = {}
        for place, (key, part) in enumerate(parts):
            object_of = ("alone", place) if key is None else ("group", key)
            before[part.pixels()] = names.setdefault(object_of, len(names) + 1)
        for number, part in enumerate(join_parts(parts), 1):
            after[part.pixels()] = number
        pairs = {(a, b) for a, b in zip(before.ravel().tolist(), after.ravel().tolist())}
        assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
        assert all((a == 0) == (b == 0) for a, b in pairs)
