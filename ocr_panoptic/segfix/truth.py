"""
Computes SegFix's ground truth: the offset labels of a segment map.

A *segment map*, uint8 [H, W], has the number of each pixel's segment, or VOID_LABEL. The segments
are the classes of a semantic data set, or the things and stuff of a panoptic data set. Void pixels
are outside every segment. The image's border is not a boundary.

The labels equal openseg.pytorch's offline labels (``dt_offset_generator.py``) with three
exceptions: a class with fewer than MIN_PIXELS pixels is void; the direction in the middle of a
segment is undefined; distances are padded by replication, so that the image's border does not skew
the directions near it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from fvcore.transforms.transform import Transform

from ocr_panoptic.formats.coco_panoptic import VOID_LABEL, read_segment_ids
from ocr_panoptic.formats.labels import read_labels
from ocr_panoptic.formats.offsets import IGNORED, UNDEFINED, offset_labels
from ocr_panoptic.formats.segment_runs import segment_statistics

MIN_PIXELS = 100  # a class with fewer pixels in an image is void
MAX_SEGMENTS = VOID_LABEL  # number of segments that a segment map can hold

RADIUS = 2  # radius of the kernels in pixels
_SIDE = np.arange(-RADIUS, RADIUS + 1, dtype=np.float32)
_SQUARES = _SIDE[:, None] ** 2 + _SIDE**2
_SQUARES[RADIUS, RADIUS] = 1  # avoids 0 / 0 in the middle
# As published: correlating a map with both gives 12 times the map's (rightward, downward) slope.
KERNELS = _SIDE / _SQUARES, _SIDE[:, None] / _SQUARES
# A direction is undefined if the distance has a smaller slope; a straight boundary has slope 1.
LEAST_SLOPE = 0.05


def read_segment_map(
    record: Mapping[str, Any], label_map: Mapping[int, int] | None = None
) -> np.ndarray:
    """
    Return the segment map of a data set's record.

    In a semantic data set, classes with fewer than MIN_PIXELS pixels become void. In a panoptic
    data set, crowds become void, and so do all segments except the MAX_SEGMENTS largest.

    ``label_map`` is the label map of a semantic data set, see :func:`.apply_label_map`.
    """
    if "pan_seg_file_name" in record:
        ids = read_segment_ids(record)
        crowds = [s["id"] for s in record["segments_info"] if s.get("iscrowd")]
        return panoptic_segments(ids, crowds)
    return class_segments(read_labels(record["sem_seg_file_name"], label_map))


def class_segments(labels: np.ndarray) -> np.ndarray:
    """
    Return the segment map of semantic labels, unsigned integers [H, W] up to VOID_LABEL.

    Classes with fewer than MIN_PIXELS pixels become void.
    """
    pixels = np.bincount(labels.reshape(-1), minlength=VOID_LABEL + 1)
    numbers = np.where(pixels < MIN_PIXELS, VOID_LABEL, np.arange(len(pixels)))
    numbers[VOID_LABEL] = VOID_LABEL
    return numbers.astype(np.uint8)[labels]


def panoptic_segments(ids: np.ndarray, crowds: list[int]) -> np.ndarray:
    """
    Return the segment map of a panoptic id map ``ids``, int32 [H, W].

    Id 0 and the ids in ``crowds`` become void, and so do all but the MAX_SEGMENTS largest segments.
    """
    present, number, pixels = np.unique(ids, return_inverse=True, return_counts=True)
    pixels[np.isin(present, [0, *crowds])] = 0
    largest = np.argsort(-pixels, kind="stable")[:MAX_SEGMENTS]
    largest = largest[pixels[largest] > 0]
    numbers = np.full(len(present), VOID_LABEL, np.uint8)
    numbers[largest] = np.arange(len(largest))
    return numbers[number].reshape(ids.shape)


def true_offset_labels(segments: np.ndarray, boundary_distance: int) -> np.ndarray:
    """
    Return offset labels, uint8 [H, W], for a segment map; void pixels get the label IGNORED.

    An offset label encodes whether a pixel is near a boundary, and the direction into its segment.
    A pixel is near a boundary if its distance to the nearest pixel outside its segment, rounded
    down to whole pixels, is at most ``boundary_distance``.
    """
    import cv2  # imported here, since only data with offsets need it

    height, width = segments.shape
    found = np.full(segments.shape, IGNORED, np.uint8)
    ids = segments.astype(np.int32) + 1
    ids[segments == VOID_LABEL] = 0
    for number, (area, (left, top, wide, high)) in segment_statistics(ids).items():
        # The nearest pixel outside lies in the box or in the one-pixel ring around it. The
        # kernels need RADIUS pixels around the box.
        rows = slice(max(top - RADIUS, 0), min(top + high + RADIUS, height))
        columns = slice(max(left - RADIUS, 0), min(left + wide + RADIUS, width))
        inside = ids[rows, columns] == number
        if area == ids.size:  # nothing is outside
            distance = np.full(inside.shape, np.inf, np.float32)
            direction = np.full(inside.shape, UNDEFINED)
        else:
            distance = cv2.distanceTransform(
                inside.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE
            )
            slopes = (
                cv2.filter2D(distance, cv2.CV_32F, kernel, borderType=cv2.BORDER_REPLICATE) / 12
                for kernel in KERNELS
            )
            direction = _directions(*slopes)
        labels = offset_labels(np.floor(distance) <= boundary_distance, direction)
        np.copyto(found[rows, columns], labels, where=inside)
    return found


def _directions(right: np.ndarray, down: np.ndarray) -> np.ndarray:
    """
    Return the direction of each vector (right, down), int64 in 0..7; UNDEFINED for short vectors.

    Direction i covers the angles within 22.5 degrees of -180 + 45 i degrees, measured clockwise
    from the right.
    """
    angle = np.degrees(np.arctan2(down, right))
    direction = np.ceil((angle + 180 - 22.5) / 45).astype(np.int64) % 8
    direction[np.hypot(right, down) < LEAST_SLOPE] = UNDEFINED
    return direction


class OffsetTruth(Transform):
    """
    A transform that replaces segment maps by offset labels, and leaves images unchanged.

    Pixels up to ``boundary_distance`` pixels away from a boundary count as near the boundary.
    """

    def __init__(self, boundary_distance: int):
        super().__init__()
        self.boundary_distance = boundary_distance

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return img

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return coords

    def apply_segmentation(self, segmentation: np.ndarray) -> np.ndarray:
        return true_offset_labels(segmentation, self.boundary_distance)
