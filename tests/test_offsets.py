"""Offsets: the numbering of directions, labels, and moved values."""

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
        with pytest.raises(ValueError, match=f"has {size[1]}x{size[0]} pixels, the offsets 13x9"):
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
        ({"labels": offsets}, "no variable 'mat'; found labels"),
    ):
        io.savemat(tmp_path / "a.mat", content)
        with pytest.raises(ValueError, match=f"a.mat: .*{fault}"):
            read_offsets(tmp_path / "a.mat")
    with pytest.raises(FileNotFoundError, match="b.mat"):
        read_offsets(tmp_path / "b.mat")
