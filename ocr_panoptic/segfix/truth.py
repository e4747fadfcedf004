"""The true offset labels of a segment map: which pixels lie near a boundary, and where inside is.

A *segment map* is uint8 [H, W]: the number of each pixel's segment, or VOID_LABEL. The segments are
the classes of a semantic data set, or things and stuff of a panoptic one. Of a segment everything
else is outside, void too; the image's border is no boundary.

Made as openseg.pytorch does it offline (its three ``dt_offset_generator.py``), but for what that
leaves to chance: a class too small to count is void, not a boundary that points anywhere; the
direction in the middle of a region, where none is nearer to its inside, is undefined; and the
image's border does not push directions away from it. Shape letters: H, W size of the image.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from fvcore.transforms.transform import Transform

from ocr_panoptic.formats.coco_panoptic import read_segment_ids
from ocr_panoptic.formats.labels import VOID_LABEL, read_labels
from ocr_panoptic.formats.offsets import IGNORED, UNDEFINED, offset_labels
from ocr_panoptic.formats.segment_runs import segment_statistics

MIN_PIXELS = 100  # of a class in an image
MAX_SEGMENTS = VOID_LABEL  # that a segment map can number

RADIUS = 2  # of the kernels
_SIDE = np.arange(-RADIUS, RADIUS + 1, dtype=np.float32)
_SQUARES = _SIDE[:, None] ** 2 + _SIDE**2
_SQUARES[RADIUS, RADIUS] = 1  # its numerator is 0
# Of the published correlation; (rightward, downward) slope of a map, 12 times as large.
KERNELS = _SIDE / _SQUARES, _SIDE[:, None] / _SQUARES
LEAST_SLOPE = 0.05  # of the distance, for a direction; 1 across a straight boundary


def read_segment_map(
    record: Mapping[str, Any], label_map: Mapping[int, int] | None = None
) -> np.ndarray:
    """
    Args:
        record: of a panoptic data set, with pan_seg_file_name and segments_info; or of a semantic
            one, with sem_seg_file_name.
        label_map: of a semantic one, see :func:`.apply_label_map`.

    Returns:
        uint8 [H, W]. Void are also classes of fewer than MIN_PIXELS pixels, crowds, within which
        boundaries are unknown, and the smallest of more than MAX_SEGMENTS segments.

    Raises:
        FileNotFoundError, ValueError: the file is missing or broken, or has labels that the map
            lacks.
    """
    if "pan_seg_file_name" in record:
        ids = read_segment_ids(record)
        crowds = [s["id"] for s in record["segments_info"] if s.get("iscrowd")]
        return panoptic_segments(ids, crowds)
    return class_segments(read_labels(record["sem_seg_file_name"], label_map))


def class_segments(labels: np.ndarray) -> np.ndarray:
    """The segment map of training labels, unsigned integers [H, W], at most VOID_LABEL."""
    pixels = np.bincount(labels.reshape(-1), minlength=VOID_LABEL + 1)
    numbers = np.where(pixels < MIN_PIXELS, VOID_LABEL, np.arange(len(pixels)))
    numbers[VOID_LABEL] = VOID_LABEL
    return numbers.astype(np.uint8)[labels]


def panoptic_segments(ids: np.ndarray, crowds: list[int]) -> np.ndarray:
    """The segment map of a panoptic one, int32 [H, W] with void 0; ``crowds`` are void too."""
    present, number, pixels = np.unique(ids, return_inverse=True, return_counts=True)
    pixels[np.isin(present, [0, *crowds])] = 0
    largest = np.argsort(-pixels, kind="stable")[:MAX_SEGMENTS]
    largest = largest[pixels[largest] > 0]
    numbers = np.full(len(present), VOID_LABEL, np.uint8)
    numbers[largest] = np.arange(len(largest))
    return numbers[number].reshape(ids.shape)


def true_offset_labels(segments: np.ndarray, boundary_distance: int) -> np.ndarray:
    """
    Args:
        segments: uint8 [H, W], a segment map.
        boundary_distance: pixels whose distance from the nearest one outside of their segment,
            rounded down, is at most this lie near a boundary.

    Returns:
        uint8 [H, W], see :func:`.offset_labels`; IGNORED where the segment is void.
    """
    import cv2  # which data without offsets can do without

    height, width = segments.shape
    found = np.full(segments.shape, IGNORED, np.uint8)
    ids = segments.astype(np.int32) + 1
    ids[segments == VOID_LABEL] = 0
    for number, (area, (left, top, wide, high)) in segment_statistics(ids).items():
        # What lies nearest outside lies in the box, or in the ring around it; the kernels reach
        # RADIUS pixels further.
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
    """The direction of each slope, int64: that of -180 + 45 i degrees, clockwise from the right,
    is i, and has the angles at most 22.5 degrees away."""
    angle = np.degrees(np.arctan2(down, right))
    direction = np.ceil((angle + 180 - 22.5) / 45).astype(np.int64) % 8
    direction[np.hypot(right, down) < LEAST_SLOPE] = UNDEFINED
    return direction


class OffsetTruth(Transform):
    """
    Replace a segment map by its offset labels; images stay.

    Args:
        boundary_distance: see :func:`true_offset_labels`.
    """

    def __init__(self, boundary_distance: int):
        super().__init__()
        self.boundary_distance = boundary_distance

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return img

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return coords

    def apply_segmentation(self, segmentation: np.ndarray) -> np.ndarray:
        """Return :func:`true_offset_labels` of a segment map, uint8 [H, W]."""
        return true_offset_labels(segmentation, self.boundary_distance)
