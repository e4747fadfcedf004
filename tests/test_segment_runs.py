"""Areas and boxes against hand-worked numbers and pycocotools."""

import numpy as np
import pycocotools.mask as mask_util
import pytest

from ocr_panoptic.formats.segment_runs import SegmentRuns, segment_statistics


def test_hand_worked():
    ids = np.array([[0, 7, 7, 0], [0, 0, 7, 2], [70000, 0, 0, 2]], np.int32)
    statistics = segment_statistics(ids)
    assert {number: tuple(found) for number, found in statistics.items()} == {
        2: (2, [3, 1, 1, 2]),
        7: (3, [1, 0, 2, 2]),
        70000: (1, [0, 2, 1, 1]),
    }


@pytest.mark.parametrize("size", [(1, 1), (13, 7), (40, 61)])
def test_equals_pycocotools(size):
    rng = np.random.default_rng(0)
    ids = rng.choice([0, 1, 5, 256, 65536, 16777215], size).astype(np.int32)
    ids[: size[0] // 2, : size[1] // 2] = 0
    runs = SegmentRuns(ids)
    for number, (area, bbox) in segment_statistics(ids).items():
        mask = mask_util.encode(np.asfortranarray(ids == number, np.uint8))
        assert runs.run_lengths(number) == {**mask, "counts": mask["counts"].decode()}
        assert area == mask_util.area(mask)
        assert bbox == mask_util.toBbox(mask).tolist()
    assert set(segment_statistics(ids)) == set(np.unique(ids)) - {0}


def test_masks_that_begin_and_end_anywhere():
    """Runs over several columns; the first and the last pixel in the mask and out of it."""
    maps = np.array([[[1, 1, 2], [1, 1, 2]], [[2, 1, 1], [2, 1, 2]], [[1, 1, 1], [1, 1, 1]]])
    for ids in maps:
        for number in np.unique(ids):
            mask = mask_util.encode(np.asfortranarray(ids == number, np.uint8))
            found = SegmentRuns(ids).run_lengths(number)
            assert found == {**mask, "counts": mask["counts"].decode()}
            area, box = segment_statistics(ids)[number]
            assert (area, box) == (mask_util.area(mask), mask_util.toBbox(mask).tolist())


def test_void_alone_has_no_segment():
    assert segment_statistics(np.zeros((3, 4), np.int32)) == {}
