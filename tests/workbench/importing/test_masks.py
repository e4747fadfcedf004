"""Masks of files against pycocotools, and what would lead it astray."""

import numpy as np
import pytest
from pycocotools import mask as rle

from ocr_panoptic.workbench.importing.masks import (
    check_points,
    mask_of_polygons,
    mask_of_rle,
    masks_of_map,
)
from support.annotation_files import run_lengths


def random_pixels(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    pixels = rng.random((height, width)) < rng.random()
    return np.repeat(pixels, rng.integers(1, 5), 0)[:height]


def test_compressed_rles_are_read_as_pycocotools_writes_them():
    rng = np.random.default_rng(0)
    for _ in range(60):
        height, width = rng.integers(1, 70, 2).tolist()
        pixels = random_pixels(rng, height, width)
        found = mask_of_rle(run_lengths(pixels), height, width)
        assert np.array_equal(rle.decode(found), pixels)
    large = np.zeros((3000, 2000), np.uint8, order="F")  # counts of five characters
    large[100:2900, 1500] = 1
    assert mask_of_rle(run_lengths(large), 3000, 2000) == rle.encode(large)


def test_uncompressed_rles():
    found = mask_of_rle({"size": [2, 3], "counts": [1, 2, 3]}, 2, 3)
    assert rle.decode(found).tolist() == [[0, 1, 0], [1, 0, 0]]


# Counts 6 and, with zeros between, 1, 2, ... 32768, 32768, ... 65535 times 2 ** 33: 6 + 2 ** 64.
RUNS_OVER = "6" + "PPPPPP80" * 32768 + "00" + "PPPPPP80" * 32767


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"size": [2, 3], "counts": [1, 2]}, "add up to 3"),
        ({"size": [2, 3], "counts": [8, -2]}, "integers of at least 0"),
        ({"size": [2, 3], "counts": [2.0, 4]}, "integers of at least 0"),
        ({"size": [3, 2], "counts": [6]}, r"of size \[3, 2\], the image is \[2, 3\]"),
        ({"size": [2, 3], "counts": "6P"}, "no compressed counts"),  # goes on after its end
        ({"size": [2, 3], "counts": "6\x00"}, "no compressed counts"),
        ({"size": [2, 3], "counts": "6é"}, "no compressed counts|add up"),
        ({"size": [2, 3], "counts": "PPPPPPPPP0"}, "no compressed counts"),
        ({"size": [2, 3], "counts": "7N1"}, "at least 0 and add up"),
        ({"size": [2, 3], "counts": RUNS_OVER}, "at least 0 and add up"),
        ({"size": [2, 3], "counts": ""}, "add up to 0"),
        ({"counts": None}, "must be an object"),
        ("6", "must be an object"),
    ],
)
def test_broken_rles(wrong, message):
    with pytest.raises(ValueError, match=message):
        mask_of_rle(wrong, 2, 3)


def test_polygons():
    square = check_points([[1, 1], [4, 1], [4, 3], [1, 3]], 5, 6)
    assert rle.decode(mask_of_polygons([square], 5, 6))[1:3, 1:4].sum() == 6
    assert rle.area(mask_of_polygons([square, square], 5, 6)) == 6
    for few in ([], [[1, 1]], [[1, 1], [3, 3]]):
        assert rle.area(mask_of_polygons([check_points(few, 5, 6)], 5, 6)) == 0


@pytest.mark.parametrize(
    "points, message",
    [
        ([[1, 1], [1e9, 1], [1, 1]], r"point \(1e\+09, 1\) .* far outside of the image of 6x5"),
        ([[1, 1], [-7, 1], [1, 1]], "far outside"),
        ([[1, float("nan")], [1, 1], [2, 2]], "two numbers"),
        ([[1, 1], [1], [2, 2]], "two numbers"),
        ([1, 2, 3], "two numbers"),
        ("abc", "two numbers"),
        ([["a", 1]], "two numbers"),
        (None, "two numbers"),
        ([[10**400, 1]], "two numbers"),
    ],
)
def test_broken_polygons(points, message):
    with pytest.raises(ValueError, match=message):
        check_points(points, 5, 6)


def test_masks_of_a_map():
    values = np.array([[0, 7, 7], [9, 7, 0]])
    found = {value: rle.decode(mask).tolist() for value, mask in masks_of_map(values)}
    assert found == {7: [[0, 1, 1], [0, 1, 0]], 9: [[0, 0, 0], [1, 0, 0]]}
