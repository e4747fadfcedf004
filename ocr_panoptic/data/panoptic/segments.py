"""Area and box of every segment of a panoptic map.

Shape letters: H, W size of the image.
"""

from typing import NamedTuple

import numpy as np


class SegmentStatistics(NamedTuple):
    """What COCO's ``segments_info`` says about a segment's pixels."""

    area: int  # pixels
    bbox: list[int]  # [x, y, width, height] in pixels


def segment_statistics(ids: np.ndarray) -> dict[int, SegmentStatistics]:
    """Area and tight box of every segment, void (0) left out.

    Args:
        ids: non-negative integers [H, W], as :func:`read_panoptic_png` returns them.

    Returns:
        segment id -> statistics, in ascending order of ids.
    """
    values, labels, areas = np.unique(ids, return_inverse=True, return_counts=True)
    labels = labels.reshape(ids.shape)
    first_row, last_row = _extent(labels, len(values))
    first_column, last_column = _extent(labels.T, len(values))
    return {
        int(value): SegmentStatistics(
            int(area), [int(x0), int(y0), int(x1 - x0 + 1), int(y1 - y0 + 1)]
        )
        for value, area, x0, x1, y0, y1 in zip(
            values, areas, first_column, last_column, first_row, last_row, strict=True
        )
        if value != 0
    }


def _extent(labels: np.ndarray, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """First and last row in which each label 0..num_labels-1 occurs; every label occurs."""
    height = len(labels)
    present = np.zeros((height, num_labels), bool)
    present[np.arange(height)[:, None], labels] = True
    return present.argmax(axis=0), height - 1 - present[::-1].argmax(axis=0)
