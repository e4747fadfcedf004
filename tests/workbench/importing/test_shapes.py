"""Masks and shapes, compared with pycocotools and with results by hand."""

import cmath
import json
import math

import cv2
import numpy as np
import pytest
from pycocotools import mask as rle

from ocr_panoptic.workbench.importing.annotated_image import Segment
from ocr_panoptic.workbench.importing.label_studio import decode_brush
from ocr_panoptic.workbench.importing.masks import (
    check_points,
    ellipse,
    is_traced,
    mask_of_polygons,
    mask_of_rle,
    rectangle,
    window_of,
)
from support.annotation_files import brush, run_lengths
from support.tool_exports import EXPORTS

H, W = 30, 40


def pixels_of(mask: dict) -> np.ndarray:
    return Segment("", mask).pixels()


def box(top: int, bottom: int, left: int, right: int) -> np.ndarray:
    pixels = np.zeros((H, W), bool)
    pixels[top:bottom, left:right] = True
    return pixels


def test_rles_written_by_pycocotools_are_read():
    rng = np.random.default_rng(0)
    for _ in range(60):
        height, width = rng.integers(1, 70, 2).tolist()
        pixels = rng.random((height, width)) < rng.random()
        pixels = np.repeat(pixels, rng.integers(1, 5), 0)[:height]
        found = mask_of_rle(run_lengths(pixels), height, width)
        assert found == rle.encode(np.asfortranarray(pixels, np.uint8))
    large = np.zeros((3000, 2000), np.uint8, order="F")  # counts of five characters
    large[100:2900, 1500] = 1
    assert mask_of_rle(run_lengths(large), 3000, 2000) == rle.encode(large)
    found = mask_of_rle({"size": [2, 3], "counts": [1, 2, 3]}, 2, 3)
    assert rle.decode(found).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("counts", [[1, 2], [8, -2], [1, 9], "7N1", "PPPPPPPPP0", "", "100"])
def test_short_rles_are_refused(counts):
    """In pycocotools, a short RLE gives uninitialised memory, and merging it never ends."""
    with pytest.raises(ValueError, match="add up"):
        mask_of_rle({"size": [2, 3], "counts": counts}, 2, 3)


def test_a_window_is_the_decoded_box():
    rng = np.random.default_rng(0)
    for density in (0, 0.01, 0.5, 0.99, 1):
        pixels = rng.random((17, 23)) < density
        mask = rle.encode(np.asfortranarray(pixels, np.uint8))
        window, inside = window_of(mask)
        found = np.zeros_like(pixels)
        found[window] = inside
        assert np.array_equal(found, pixels)
        assert not pixels.any() or all(inside.any(axis)[[0, -1]].all() for axis in (0, 1))


def outline(radius: int, method: int = cv2.CHAIN_APPROX_NONE) -> np.ndarray:
    disc = cv2.circle(np.zeros((60, 60), np.uint8), (30, 30), radius, 1, -1)
    ((corners,), _) = cv2.findContours(disc, cv2.RETR_EXTERNAL, method)
    return corners.reshape(-1, 2).astype(float)


STAIRS = [(x, y) for k in range(9) for x, y in ((k, k), (k + 1, k))] + [(9, 9), (0, 9)]


@pytest.mark.parametrize(
    "corners, expected",
    [
        (outline(20), True),
        (outline(20, cv2.CHAIN_APPROX_SIMPLE), True),
        (outline(20) / 613 * 613.004, True),  # as text files round coordinates
        (outline(20) + 0.5, False),
        (np.array(STAIRS, float), False),  # along the edges of pixels
        (np.array(OCTAGON := [(4, 0), (8, 0), (11, 5), (9, 9), (4, 12), (1, 9), (0, 3)]), False),
        (np.array([*OCTAGON, (2, 1)], float), False),  # drawn by hand
        (np.array([(3, 0), (6, 0), (9, 3), (9, 6), (6, 9), (3, 9), (0, 6), (0, 3)]), False),
    ],
)
def test_traced_polygons(corners, expected):
    assert is_traced(corners) == expected


@pytest.mark.parametrize("size, digits", [(640, 3), (1920, 4), (3840, 4)])
def test_traced_polygons_in_files_with_few_digits(size, digits):
    step = size / 10**digits
    corners = np.round(outline(20) / size, digits) * size
    assert is_traced(corners, step) and not is_traced(corners + 0.5, step)
    angles = np.linspace(0, 2 * np.pi, 150)
    drawn = np.stack([30 + 20 * np.cos(angles), 30 + 20 * np.sin(angles)], 1)
    assert not is_traced(np.round(drawn / size, digits) * size, step)


def test_centres_are_rounded():
    """Coordinates relative to the size are no whole numbers any more; Pillow cuts them off."""
    corners = np.round(outline(20) / 613, 5) * 613
    disc = cv2.circle(np.zeros((60, 60), np.uint8), (30, 30), 20, 1, -1)
    assert np.array_equal(pixels_of(mask_of_polygons([corners], 60, 60, "centres")), disc > 0)


def test_polygons():
    square = [[1, 1], [4, 1], [4, 3], [1, 3]]
    assert rle.decode(mask_of_polygons([square], 5, 6))[1:3, 1:4].sum() == 6
    assert rle.area(mask_of_polygons([square, square], 5, 6)) == 6
    assert rle.area(mask_of_polygons([square], 5, 6, "centres")) == 12
    assert rle.area(mask_of_polygons([[], [[1, 1]], [[1, 1], [3, 3]]], 5, 6)) == 0


@pytest.mark.parametrize(
    "points, message",
    [
        ([[1, 1], [1e9, 1], [1, 1]], r"point \(1e\+09, 1\) .* far outside the image of 6x5"),
        ([[1, 1], [-7, 1], [1, 1]], "far outside"),
        ([[1, float("nan")], [1, 1], [2, 2]], "two numbers"),
        (None, "two numbers"),
        ([[10**400, 1]], "two numbers"),
    ],
)
def test_broken_polygons(points, message):
    with pytest.raises(ValueError, match=message):
        check_points(points, 5, 6)


def test_a_rectangle_has_the_pixels_between_its_corners():
    for corners in ((3, 4, 20, 9), (20, 9, 3, 4), (3, 9, 20, 4)):
        assert np.array_equal(pixels_of(rectangle(corners, H, W)), box(4, 9, 3, 20))


def test_a_rectangle_rotates_clockwise_about_its_centre_or_a_pivot():
    turned = rectangle((5, 10, 19, 14), H, W, 90)  # 14 x 4 about (12, 12), by a quarter turn
    assert np.array_equal(pixels_of(turned), box(5, 19, 10, 14))
    turned = rectangle((20, 10, 34, 14), H, W, 90, pivot=(20, 10))  # about its first corner
    assert np.array_equal(pixels_of(turned), box(10, 24, 16, 20))


@pytest.mark.parametrize("rotation", [0, 30, 90, 217])
def test_an_ellipse_has_the_pixels_whose_centres_lie_in_it(rotation):
    (cx, cy), (rx, ry) = (17.3, 14.6), (12.5, 6.25)
    found = pixels_of(ellipse((cx, cy), (rx, ry), H, W, rotation))
    for y, x in np.ndindex(H, W):
        turned = complex(x + 0.5 - cx, y + 0.5 - cy) * cmath.rect(1, math.radians(-rotation))
        assert found[y, x] == ((turned.real / rx) ** 2 + (turned.imag / ry) ** 2 <= 1)


def test_shapes_are_cut_at_the_border_of_the_image():
    assert pixels_of(rectangle((-5, -5, 45, 35), H, W)).all()
    assert pixels_of(ellipse((20, 15), (60, 60), H, W)).all()
    assert pixels_of(mask_of_polygons([[(-9, -9), (49, -9), (49, 39), (-9, 39)]], H, W)).all()
    assert not pixels_of(rectangle((-9, -9, -2, -2), H, W)).any()


# 2 x 1 pixels: 8 values of 8 bits, in pieces of at most 2, 4, 8 and 16 values.
HEADER = [(8, 32), (7, 5), (0, 4), (1, 4), (2, 4), (3, 4)]


def bits(*fields: tuple[int, int]) -> list[int]:
    """Return the bytes of numbers, each given as (value, bits)."""
    text = "".join(f"{value:0{count}b}" for value, count in fields)
    text += "0" * (-len(text) % 8)
    return [int(text[place : place + 8], 2) for place in range(0, len(text), 8)]


def test_a_brush_of_runs_and_single_values():
    # 4 times 0; then 9, 8, 7, 6: the second pixel is opaque by its last channel, 6.
    pieces = [(1, 1), (1, 2), (3, 2), (0, 8), (0, 1), (1, 2), (3, 2)]
    pieces += [(value, 8) for value in (9, 8, 7, 6)]
    assert decode_brush(bits(*HEADER, *pieces), 1, 2).tolist() == [[False, True]]
    # Only whether a pixel is opaque counts; colours and the degree of opacity do not.
    pieces = [(0, 1), (2, 2), (7, 3), *[(v, 8) for v in (255, 255, 255, 0, 0, 0, 0, 1)]]
    assert decode_brush(bits(*HEADER, *pieces), 2, 1).tolist() == [[False], [True]]


def test_a_brush_written_by_label_studios_sdk():
    tasks = json.loads((EXPORTS / "label_studio.json").read_text())
    results = [result for task in tasks for result in task["annotations"][0]["result"]]
    assert len(results) == 14
    for result in results:
        theirs, size = result["value"]["rle"], (result["original_height"], result["original_width"])
        ours = brush(decode_brush(theirs, *size))
        # If the bits fill whole bytes, the SDK adds another byte.
        assert ours == theirs[: len(ours)] and theirs[len(ours) :] in ([], [0])


@pytest.mark.parametrize(
    "code, reason",
    [
        ([0, 256], "range"),
        ([], "is truncated"),
        (bits((12, 32), *HEADER[1:]), "12 values of 8 bits, expected 8 values of 8"),
        (bits(HEADER[0], (15, 5), *HEADER[2:]), "8 values of 16 bits"),
        (bits(*HEADER, (1, 1), (3, 2), (15, 4), (0, 8)), "more than 8 values"),
        (bits(*HEADER, (0, 1), (2, 2), (7, 3), (1, 8), (1, 8)), "is truncated"),
    ],
)
def test_faulty_brushes(code, reason):
    with pytest.raises(ValueError, match=reason):
        decode_brush(code, 1, 2)
