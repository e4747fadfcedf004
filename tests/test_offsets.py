"""Offsets: directions, labels, moved values, and the truth by its definition pixel by pixel."""

import math

import numpy as np
import pytest
import torch

from ocr_panoptic.formats.offsets import (
    DIRECTIONS,
    IGNORED,
    MIRRORED,
    UNDEFINED,
    moved,
    offset_labels,
    offsets_of,
    read_offsets,
    source_pixels,
    split_offset_labels,
)
from ocr_panoptic.segfix.truth import class_segments, panoptic_segments, true_offset_labels


def test_directions_go_round_clockwise_from_the_left():
    """Directions are -180 + 45 i degrees, with 0 to the right and 90 down."""
    angles = np.degrees(np.arctan2(*DIRECTIONS.T.astype(float)))
    np.testing.assert_allclose(angles % 360, (-180 + 45 * np.arange(8)) % 360)
    for a, b in MIRRORED:
        assert (DIRECTIONS[a] * [1, -1]).tolist() == DIRECTIONS[b].tolist()
    upright = set(range(8)) - {d for pair in MIRRORED for d in pair}
    assert all(DIRECTIONS[d][1] == 0 for d in upright)


@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_labels_and_their_parts(library):
    near, direction = np.array([[True, False, True, False]]), np.array([[7, 0, UNDEFINED, 3]])
    labels = offset_labels(near, direction)
    assert labels.dtype == np.uint8 and len(set(labels.ravel())) == 4 and labels.max() < IGNORED
    labels = np.append(labels, [[IGNORED]], axis=1).astype(np.int64)
    found = [part.tolist() for part in split_offset_labels(library(labels))]
    assert found == [[[1, 0, 1, 0, 255]], [[7, 0, 255, 3, 255]]]


def test_offsets_away_from_boundaries_or_without_direction_are_0():
    near = np.array([[True, False, True, True]])
    offsets = offsets_of(near, np.array([[1, 1, UNDEFINED, IGNORED]]))
    assert offsets.dtype == np.int8
    assert offsets.tolist() == [[[-1, -1], [0, 0], [0, 0], [0, 0]]]


@pytest.mark.parametrize("scale", [1, 2, 7])
def test_every_pixel_takes_the_value_of_its_source(scale):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1000, (3, 9, 13))
    offsets = rng.integers(-1, 2, (9, 13, 2)).astype(np.int8)
    y, x = np.mgrid[:9, :13] + scale * np.moveaxis(offsets, 2, 0).astype(int)
    expected = values[:, y.clip(0, 8), x.clip(0, 12)]
    sources = source_pixels(offsets, scale)
    np.testing.assert_array_equal(moved(values, sources), expected)
    np.testing.assert_array_equal(moved(values[0], sources), expected[0])
    found = moved(torch.as_tensor(values) > 500, torch.as_tensor(sources))
    np.testing.assert_array_equal(found, expected > 500)

    assert source_pixels(np.full((1, 300, 2), [0, 1], np.int8), 200)[0, 50] == 250  # no overflow


@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_empty_maps_and_maps_of_another_size(library):
    sources = library(np.zeros((9, 13), np.int64))
    assert tuple(moved(library(np.zeros((0, 9, 13))), sources).shape) == (0, 9, 13)
    for size in ((13, 9), (10, 13)):
        with pytest.raises(ValueError, match=f"has {size[1]}x{size[0]} pixels, but .* 13x9"):
            moved(library(np.zeros(size)), sources)


@pytest.mark.slow
def test_offset_files(tmp_path):
    io = pytest.importorskip("scipy.io", reason="SciPy is only needed to read MATLAB files")
    offsets = np.random.default_rng(0).integers(-1, 2, (5, 4, 2))
    for dtype in (np.int64, np.int8, np.float32):  # openseg.pytorch writes int64
        io.savemat(tmp_path / "a.mat", {"mat": offsets.astype(dtype)})
        found = read_offsets(tmp_path / "a.mat")
        assert found.dtype == np.int8
        np.testing.assert_array_equal(found, offsets)
    for content, fault in (
        *(({"mat": wrong}, "expected offsets") for wrong in (offsets[..., 0], offsets + 0.5)),
        ({"mat": offsets + 1000}, "expected offsets"),
        ({"labels": offsets}, "expected the variable 'mat', found labels"),
    ):
        io.savemat(tmp_path / "a.mat", content)
        with pytest.raises(ValueError, match=f"a.mat: .*{fault}"):
            read_offsets(tmp_path / "a.mat")
    with pytest.raises(FileNotFoundError, match="b.mat"):
        read_offsets(tmp_path / "b.mat")


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


def test_the_borders_of_the_image_are_not_a_boundary():
    near, direction = split_offset_labels(true_offset_labels(np.full((9, 12), 3, np.uint8), 5))
    assert (near == 0).all() and (direction == IGNORED).all()
    halves = np.zeros((9, 40), np.uint8)
    halves[:, 20:] = 1
    near, direction = split_offset_labels(true_offset_labels(halves, 5))
    assert (near[:, :15] == 0).all() and (near[:, 15:25] == 1).all()
    assert (direction[:, 3:20] == 0).all() and (direction[:, 20:37] == 4).all()
    stripe = (np.arange(30) == 14).repeat(30).reshape(30, 30).T.astype(np.uint8)
    # A stripe has no direction.
    near, direction = split_offset_labels(true_offset_labels(stripe, 5))
    assert (near[:, 14] == 1).all() and (direction[5:25, 14] == IGNORED).all()
    assert UNDEFINED not in direction


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
