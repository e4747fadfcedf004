"""
Compute the areas, boxes, masks and labels of segments from the runs of a panoptic map.

A run is a stretch of equal ids in column order, as in COCO's RLE. A map has far fewer runs than
pixels, so runs are faster to sort and count.

Shape letters: H, W size of the image; R runs; S different ids.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pycocotools.mask as mask_util


class SegmentStatistics(NamedTuple):
    """A segment's area in pixels and its box [x, y, width, height], as in ``segments_info``."""

    area: int
    bbox: list[int]


class SegmentRuns:
    """
    The runs of a panoptic map, non-negative integers [H, W], and properties of its segments.

    ``ids`` are the different ids in the map, including void (0), in ascending order, [S].
    """

    def __init__(self, ids: np.ndarray):
        self.size = ids.shape
        columns = ids.ravel(order="F")
        changes = np.flatnonzero(columns[1:] != columns[:-1]) + 1
        starts = np.concatenate(([0], changes)) if columns.size else changes
        self.ids, place = np.unique(columns[starts], return_inverse=True)  # [S] with void, [R]
        self._place = place  # index of each run's id in ids
        self._lengths = np.diff(starts, append=columns.size)
        # The runs sorted by id, and in column order within an id.
        order = np.argsort(place, kind="stable")
        self._starts, self._ends = starts[order], (starts + self._lengths)[order]
        self._first = np.searchsorted(place[order], np.arange(len(self.ids) + 1))

    @cached_property
    def statistics(self) -> dict[int, SegmentStatistics]:
        """The area and tight box of every segment except void (0), in ascending order of ids."""
        if not len(self.ids):
            return {}
        height, first = self.size[0], self._first[:-1]
        last = self._ends - 1
        top, bottom = self._starts % height, last % height
        # A run that spans several columns touches both the bottom and the top.
        several = self._starts // height != last // height
        top[several], bottom[several] = 0, height - 1
        areas = np.add.reduceat(self._ends - self._starts, first)
        left, right = self._starts[first] // height, last[self._first[1:] - 1] // height
        top, bottom = np.minimum.reduceat(top, first), np.maximum.reduceat(bottom, first)
        boxes = np.stack([left, top, right - left + 1, bottom - top + 1], axis=1)
        segments = zip(self.ids.tolist(), areas.tolist(), boxes.tolist(), strict=True)
        return {number: SegmentStatistics(area, box) for number, area, box in segments if number}

    def labels(self, label_of: Mapping[int, int], other: int) -> np.ndarray:
        """Return each pixel's label, uint8 [H, W]; ids that ``label_of`` lacks get ``other``."""
        table = np.array([label_of.get(number, other) for number in self.ids.tolist()], np.uint8)
        columns = np.repeat(table[self._place], self._lengths)
        return np.ascontiguousarray(columns.reshape(self.size[::-1]).T)

    def places(self) -> np.ndarray:
        """Return each pixel's index into ``ids``, [H, W] uint8, or uint16 for more than 256 ids."""
        kind = np.uint8 if len(self.ids) <= 256 else np.uint16
        columns = np.repeat(self._place.astype(kind), self._lengths)
        return np.ascontiguousarray(columns.reshape(self.size[::-1]).T)

    def run_lengths(self, number: int) -> dict:
        """Return COCO's compressed RLE of the segment with id ``number``, ready for JSON."""
        place = np.searchsorted(self.ids, number)
        mine = slice(self._first[place], self._first[place + 1])
        return _run_lengths(self._starts[mine], self._ends[mine], self.size)


def placed_run_lengths(mask: np.ndarray, place: tuple[int, int], size: tuple[int, int]) -> dict:
    """
    Return COCO's compressed RLE of a mask, bool [h, w], placed in an image of ``size`` (H, W).

    ``place`` is the row and column in the image at which the mask begins.
    """
    import cv2

    x, y, width, height = cv2.boundingRect(mask.view(np.uint8))
    box = mask[y : y + height, x : x + width].T.astype(np.int8)
    edges = np.diff(np.pad(box, ((0, 0), (1, 1))), axis=1)
    starts, ends = (
        (place[1] + x + columns) * size[0] + place[0] + y + rows
        for columns, rows in (np.nonzero(edges == kind) for kind in (1, -1))
    )
    # Merge runs that touch: one ends at a column's bottom, the next begins at the next one's top.
    return _run_lengths(np.setdiff1d(starts, ends), np.setdiff1d(ends, starts), size)


def _run_lengths(starts: np.ndarray, ends: np.ndarray, size: tuple[int, int]) -> dict:
    borders = np.stack([starts, ends], axis=1).reshape(-1)
    counts = np.diff(borders, prepend=0, append=size[0] * size[1])  # zeros, ones, zeros ...
    if counts[-1] == 0:
        counts = counts[:-1]
    encoded = mask_util.frPyObjects({"size": size, "counts": counts.tolist()}, *size)
    return {"size": list(size), "counts": encoded["counts"].decode("ascii")}


def segment_statistics(ids: np.ndarray) -> dict[int, SegmentStatistics]:
    """Return the area and box of each segment, except void, in a map of ids, integers [H, W]."""
    return SegmentRuns(ids).statistics
