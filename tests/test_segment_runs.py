"""Areas and boxes of segments, compared with numbers by hand and with pycocotools."""

import numpy as np
import pycocotools.mask as mask_util
import pytest

from ocr_panoptic.formats.segment_runs import SegmentRuns, placed_run_lengths, segment_statistics


def test_hand_worked():
    ids = np.array([[0, 7, 7, 0], [0, 0, 7, 2], [70000, 0, 0, 2]], np.int32)
    expected = {2: (2, [3, 1, 1, 2]), 7: (3, [1, 0, 2, 2]), 70000: (1, [0, 2, 1, 1])}
    assert segment_statistics(ids) == expected
    assert segment_statistics(np.zeros((3, 4), np.int32)) == {}


def random_ids(*size: int) -> np.ndarray:
    ids = np.random.default_rng(0).choice([0, 1, 5, 256, 65536, 16777215], size)
    ids[: size[0] // 2, : size[1] // 2] = 0
    return ids.astype(np.int32)


@pytest.mark.parametrize(
    "ids",
    [
        *(random_ids(1, 1), random_ids(13, 7), random_ids(40, 61)),
        # Runs over several columns, with the first and the last pixel inside and outside.
        *np.array([[[1, 1, 2], [1, 1, 2]], [[2, 1, 1], [2, 1, 2]], [[1, 1, 1], [1, 1, 1]]]),
    ],
)
def test_equals_pycocotools(ids):
    runs, found = SegmentRuns(ids), segment_statistics(ids)
    for number, (area, box) in found.items():
        mask = mask_util.encode(np.asfortranarray(ids == number, np.uint8))
        assert runs.run_lengths(number) == {**mask, "counts": mask["counts"].decode()}
        assert (area, box) == (mask_util.area(mask), mask_util.toBbox(mask).tolist())
    assert set(found) == set(np.unique(ids)) - {0}


def test_masks_are_placed_as_in_a_pasted_mask():
    random = np.random.default_rng(0)
    for mask, place, size in [
        (random.random((7, 5)) < 0.6, (3, 4), (12, 11)),
        (np.ones((4, 3), bool), (0, 2), (4, 9)),  # whole columns: one run
        (random.random((6, 6)) < 0.7, (0, 0), (6, 6)),
        (np.zeros((2, 2), bool), (1, 1), (5, 5)),
    ]:
        pasted = np.zeros(size, np.uint8, order="F")
        rows, columns = (slice(p, p + n) for p, n in zip(place, mask.shape))
        pasted[rows, columns] = mask
        expected = mask_util.encode(pasted)["counts"].decode()
        assert placed_run_lengths(mask, place, size) == {"size": list(size), "counts": expected}
