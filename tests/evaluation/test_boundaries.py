"""Boundary regions and the counts in them, compared with every pair of pixels."""

import numpy as np
import pytest

from ocr_panoptic.evaluation.boundaries import (
    boundary_distance,
    inner_boundaries,
    near_other_labels,
)
from ocr_panoptic.evaluation.image_scores import BOUNDARY_WIDTH
from ocr_panoptic.evaluation.sem_seg_evaluator import SemSegCounts
from support.panoptic_samples import eroded

IGNORED = 255
K = 4


def blobs(seed: int, size: tuple[int, int], labels=(0, 1, 2, 3)) -> np.ndarray:
    """Return rectangles over rectangles, some one pixel wide, uint8 [H, W]."""
    rng = np.random.default_rng(seed)
    image = np.full(size, labels[0], dtype=np.uint8)
    for _ in range(12):
        top, left = rng.integers(0, size)
        height, width = rng.integers(1, 9, 2)
        image[top : top + height, left : left + width] = rng.choice(labels)
    return image


def samples(size=(19, 26)):
    for seed in range(6):
        yield blobs(seed, size, (0, 1, 2, 3, IGNORED)), blobs(seed + 100, size)


def brute_force(labels: np.ndarray, distance: int, border: bool) -> np.ndarray:
    """Search the square around every pixel; beyond the border lies another label, or nothing."""
    found = np.zeros(labels.shape, bool)
    padded = np.pad(labels, distance, constant_values=-1)
    for y, x in np.ndindex(labels.shape):
        square = padded[y : y + 2 * distance + 1, x : x + 2 * distance + 1]
        others = square != labels[y, x]
        found[y, x] = others.any() if border else (others & (square >= 0)).any()
    return found


def counts(truth: np.ndarray, prediction: np.ndarray) -> SemSegCounts:
    return SemSegCounts.of_image(truth, prediction, None, K, IGNORED)


@pytest.mark.parametrize("size", ((13, 17), (1, 17), (13, 1), (1, 1)))
@pytest.mark.parametrize("distances", ((1,), (2,), (40,), (5, 1, 3, 9, 5), (4, 6, 7, 8, 16)))
def test_regions(distances, size):
    labels = blobs(distances[0], size).astype(np.int32) * 70000  # segment ids are large
    found = near_other_labels(labels, distances)
    assert list(found) == sorted(set(distances))
    for distance, region in found.items():
        np.testing.assert_array_equal(region, brute_force(labels, distance, False))
        inner = inner_boundaries(region, distance)
        np.testing.assert_array_equal(inner, brute_force(labels, distance, True))


def test_boundary_errors():
    """The true boundary is at column 10, the predicted at column 12; the last rows have none."""
    assert BOUNDARY_WIDTH == 5
    truth, prediction = np.zeros((30, 24), dtype=np.uint8), np.zeros((30, 24), dtype=np.uint8)
    truth[:, 10:], prediction[:, 12:] = 1, 1
    prediction[20:] = 2
    found = counts(truth, prediction).boundary_errors
    # Errors are columns 10 and 11 of 20 rows. In the rows below, five are near the predicted
    # boundary above them; there, columns 5 to 14 are near the true boundary.
    expected = np.zeros((K, K), dtype=np.int64)
    expected[1, 0], expected[0, 2], expected[1, 2] = 40, 5 * 5, 5 * 5
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "size, expected",
    [((480, 640), 16), ((1024, 2048), 46), ((360, 480), 12), ((20, 20), 1), ((3, 4), 1)],
)
def test_distance(size, expected):
    """By hand: 0.02 * 800 = 16, 0.02 * 2289.7 = 45.8, 0.02 * 600 = 12, 0.57 -> 1, 0.1 -> 1."""
    assert boundary_distance(size) == expected


def test_boundary_counts():
    """The reference erodes each mask step by step, as the paper defines."""
    size = (60, 91)  # for which the distance is 2
    assert boundary_distance(size) == 2
    for truth, prediction in samples(size):
        for k, found in enumerate(counts(truth, prediction).boundaries):
            true, predicted = truth == k, prediction == k
            true_region = true & ~eroded(true, 2)
            predicted_region = predicted & ~eroded(predicted, 2) & (truth != IGNORED)
            assert found.tolist() == [
                np.sum(true_region & predicted_region),
                np.sum(true_region | predicted_region),
            ]
