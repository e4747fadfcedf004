"""The true offset labels, compared with their definition pixel by pixel."""

import math

import numpy as np
import pytest

from ocr_panoptic.formats.offsets import (
    IGNORED,
    MIRRORED,
    UNDEFINED,
    moved,
    offsets_of,
    source_pixels,
    split_offset_labels,
)
from ocr_panoptic.segfix.truth import class_segments, panoptic_segments, true_offset_labels

VOID = 255


def regions(height: int = 24, width: int = 31, count: int = 5, seed: int = 0) -> np.ndarray:
    """Return a segment map of the pixels nearest to some points, with a void patch."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    points = rng.uniform((0, 0), (height, width), (count, 2))
    segments = np.argmin([(y - v) ** 2 + (x - u) ** 2 for v, u in points], axis=0)
    segments[5:9, 11:16] = VOID
    return segments.astype(np.uint8)


def distance_inside(segments: np.ndarray, number: int) -> np.ndarray:
    """Return each pixel's distance from the outside by brute force, float64 [H, W]; 0 outside."""
    outside = np.argwhere(segments != number)
    found = np.zeros(segments.shape)
    for y, x in np.argwhere(segments == number):
        found[y, x] = np.sqrt(((outside - (y, x)) ** 2).sum(axis=1).min())
    return found


def slope(distance: np.ndarray, y: int, x: int) -> tuple[float, float]:
    """Return the sum (down, right) of d(p + s) s / |s|^2 over 5 x 5 pixels with repeated edges."""
    v, u = np.mgrid[-2:3, -2:3]
    weights = np.pad(distance, 2, mode="edge")[y : y + 5, x : x + 5] / np.maximum(v * v + u * u, 1)
    return (weights * v).sum(), (weights * u).sum()


@pytest.mark.parametrize("boundary_distance", [2, 5])
def test_definition(boundary_distance):
    segments = regions()
    near, direction = split_offset_labels(true_offset_labels(segments, boundary_distance))
    undefined = 0
    for number in range(5):
        distance = distance_inside(segments, number)
        for y, x in np.argwhere(segments == number):
            assert near[y, x] == (math.floor(distance[y, x]) <= boundary_distance)
            down, right = slope(distance, y, x)
            if math.hypot(down, right) < 0.05 * 12:
                assert direction[y, x] == IGNORED
                undefined += 1
                continue
            away = [
                abs((math.degrees(math.atan2(down, right)) - (-180 + 45 * i) + 180) % 360 - 180)
                for i in range(8)
            ]
            assert away[direction[y, x]] == pytest.approx(min(away), abs=1e-3)
    assert undefined < 30
    assert (near[segments == VOID] == IGNORED).all()
    assert (direction[segments == VOID] == IGNORED).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_mirrored_regions_have_mirrored_offsets(axis):
    """The offsets are exactly mirrored, in every direction."""
    segments = regions(40, 50, 7, seed=3)
    near, direction = split_offset_labels(true_offset_labels(segments, 5))
    pairs = MIRRORED if axis == 1 else ((2, 6), (1, 7), (3, 5))
    table = np.arange(256)
    for a, b in pairs:
        table[[a, b]] = b, a
    mirrored = np.ascontiguousarray(np.flip(segments, axis))
    found = split_offset_labels(true_offset_labels(mirrored, 5))
    np.testing.assert_array_equal(found[0], np.flip(near, axis))
    np.testing.assert_array_equal(found[1], np.flip(table[direction], axis))
    assert set(direction.ravel()) >= set(range(8))


def test_the_borders_of_the_image_are_not_a_boundary():
    near, direction = split_offset_labels(true_offset_labels(np.full((9, 12), 3, np.uint8), 5))
    assert (near == 0).all() and (direction == IGNORED).all()
    halves = np.zeros((9, 40), np.uint8)
    halves[:, 20:] = 1
    near, direction = split_offset_labels(true_offset_labels(halves, 5))
    assert (near[:, :15] == 0).all() and (near[:, 15:25] == 1).all()
    # The top row, too.
    assert (direction[:, 3:20] == 0).all() and (direction[:, 20:37] == 4).all()
    assert (
        split_offset_labels(true_offset_labels(np.full((4, 4), VOID, np.uint8), 5))[0] == IGNORED
    ).all()
    stripe = (np.arange(30) == 14).repeat(30).reshape(30, 30).T.astype(np.uint8)
    # A stripe has no direction.
    near, direction = split_offset_labels(true_offset_labels(stripe, 5))
    assert (near[:, 14] == 1).all() and (direction[5:25, 14] == IGNORED).all()
    assert UNDEFINED not in direction


def test_true_offsets_correct_a_prediction_that_is_two_pixels_too_large():
    """Scale 2 restores the edges; scale 1 goes half the way."""
    truth = np.zeros((60, 60), np.uint8)
    truth[20:40, 20:40] = 1
    predicted = np.zeros_like(truth)
    predicted[18:42, 18:42] = 1
    near, direction = split_offset_labels(true_offset_labels(truth, 5))
    offsets = offsets_of(near == 1, direction)
    wrong = {
        scale: np.count_nonzero(moved(predicted, source_pixels(offsets, scale)) != truth)
        for scale in (1, 2)
    }
    before = np.count_nonzero(predicted != truth)
    assert wrong[2] == 0 and 0 < wrong[1] < before


def test_classes_too_small_to_count_are_void():
    labels = np.zeros((20, 30), np.uint8)
    labels[:9, :11] = 7  # 99 pixels
    labels[:10, 20:] = 9  # 100 pixels
    labels[15:] = VOID
    found = class_segments(labels)
    assert (found[labels == 7] == VOID).all() and (found[labels == VOID] == VOID).all()
    assert (found[labels == 9] == 9).all() and (found[labels == 0] == 0).all()
    near, _ = split_offset_labels(true_offset_labels(found, 3))
    assert near[3, 11] == 1  # the pixel beside it is still near a boundary


def test_panoptic_segments():
    ids = np.array([[0, 5, 5, 70000], [9, 9, 5, 70000]], np.int32)
    found = panoptic_segments(ids, crowds=[9])
    assert (found[0, 0], *found[1, :2]) == (VOID, VOID, VOID)
    assert found[0, 1] == found[0, 2] == found[1, 2] != found[0, 3] == found[1, 3] < VOID


def test_if_there_are_too_many_segments_the_smallest_are_void():
    ids = np.repeat(np.arange(1, 301, dtype=np.int32), 4).reshape(20, 60)
    ids[0, :4] = 2  # the first segment has no pixel left, the second has eight
    found = panoptic_segments(ids, [])
    assert len(set(found.ravel())) == 256 and (found[ids == 2] < VOID).all()
    assert np.count_nonzero(found == VOID) == 4 * (299 - 255)
