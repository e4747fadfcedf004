"""
Matches an image's true and predicted segments, by masks only or by masks and boundaries.

A true and a predicted segment of the same category match if their IoU is greater than 0.5, which
makes the match unique. IoUs ignore void pixels of the truth. An unmatched predicted segment is not
a false positive if void and crowd regions of its category cover more than half of its pixels
(Kirillov et al., "Panoptic Segmentation", CVPR 2019, section 4.2). For Boundary PQ, the minimum of
IoU and Boundary IoU replaces the IoU (Cheng et al., "Boundary IoU", CVPR 2021, section 6; see
:mod:`.boundaries`).

If an image has several crowd regions of a category, the last in the JSON counts, as in
panopticapi.

Shape letters: H, W size of the image; G true segments; P predicted segments; R runs. The array
``joint``, [..., G + 2, P + 1], holds the number of pixels that each true segment (row) shares with
each predicted segment (column). Row 0 is for true ids that name no segment, row 1 for void pixels
of the truth, and column 0 for pixels without a predicted segment.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ocr_panoptic.errors import UserError

from .boundaries import boundary_distance, inner_boundaries, near_other_labels
from .runs import check_sizes, runs_of

VOID = 0
UNNAMED = -1  # not the id of any segment


class ImageMatches(NamedTuple):
    """The matched and unmatched segments of an image, each given by its category id."""

    true_positives: list[tuple[int, float]]  # (category id, IoU), sorted by the true segment's id
    false_positives: list[int]
    false_negatives: list[int]
    # (true, predicted) category ids of segments whose masks match, but whose categories differ.
    confusions: list[tuple[int, int]]


class SegmentOverlaps:
    """
    The overlaps of the true and the predicted segments of an image.

    Args:
        true_ids: segment id of each pixel, integers [H, W]; 0 is void. Ids that ``true_segments``
            does not name belong to no segment, but are not void.
        true_segments: G mappings with "id", "category_id" and optionally "iscrowd" (0 or 1).
        predicted_ids: segment id of each pixel, integers [H, W]; 0 means no prediction.
        predicted_segments: P mappings with "id" and "category_id". Segments without a pixel are
            ignored.
    """

    def __init__(
        self,
        true_ids: np.ndarray,
        true_segments: Sequence[Mapping],
        predicted_ids: np.ndarray,
        predicted_segments: Sequence[Mapping],
    ):
        check_sizes(true_ids, predicted_ids)
        self._true_ids, self._predicted_ids = true_ids, predicted_ids
        # Sorted by id: panopticapi adds IoUs in this order.
        rows = sorted(true_segments, key=lambda segment: segment["id"])
        columns = sorted(predicted_segments, key=lambda segment: segment["id"])
        self._known = _integers(rows, "id"), _integers(columns, "id")
        (true, predicted), pixels = runs_of(true_ids, predicted_ids)
        self._joint = _joint_histogram(true, self._known[0], predicted, self._known[1], pixels)
        self._iou = ious(self._joint)
        self._true_categories = _integers(rows, "category_id")
        self._categories = _integers(columns, "category_id")
        self._is_crowd = np.array([s.get("iscrowd", 0) == 1 for s in rows], dtype=bool)
        row_of = crowd_rows(true_segments, self._known[0])
        crowds = [row_of.get(category, len(rows)) for category in self._categories.tolist()]
        self._crowds = np.array(crowds, dtype=np.int64)

    def matches(self) -> ImageMatches:
        """Match the segments by IoU, as PQ requires."""
        return self._matches(self._iou)

    def boundary_matches(self) -> ImageMatches:
        """Match the segments by the minimum of IoU and Boundary IoU, as Boundary PQ requires."""
        distance = boundary_distance(self._true_ids.shape)
        maps = self._true_ids, self._predicted_ids
        regions = (
            inner_boundaries(near_other_labels(ids, [distance])[distance], distance) for ids in maps
        )
        (true, predicted, true_region, predicted_region), pixels = runs_of(*maps, *regions)
        joint = _joint_histogram(
            np.where(true_region | (true == VOID), true, UNNAMED),
            self._known[0],
            np.where(predicted_region, predicted, VOID),
            self._known[1],
            pixels,
        )
        return self._matches(np.minimum(self._iou, ious(joint)))

    def _matches(self, iou: np.ndarray) -> ImageMatches:
        true, categories = self._true_categories, self._categories
        alike, same, wrong, missed = match(
            self._joint, iou, true, self._is_crowd, self._crowds, categories
        )
        return ImageMatches(
            true_positives=[
                (int(true[g]), float(iou[g, p])) for g, p in np.argwhere(alike & same).tolist()
            ],
            false_positives=categories[wrong].tolist(),
            false_negatives=true[missed].tolist(),
            confusions=[
                (int(true[g]), int(categories[p]))
                for g, p in np.argwhere(alike & ~same & wrong).tolist()
            ],
        )


def match(
    joint: np.ndarray,
    iou: np.ndarray,
    true_categories: np.ndarray,
    is_crowd: np.ndarray,
    crowds: np.ndarray,
    categories: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """
    Match an image's true segments with predicted segments.

    Leading dimensions (``...``) hold alternative predictions with the same P categories.

    Args:
        joint: number of pixels that each pair of segments shares, [..., G + 2, P + 1].
        iou: IoU of each pair, float64 [..., G, P].
        true_categories: category of each true segment, [G].
        is_crowd: whether each true segment is a crowd, bool [G].
        crowds: for each predicted segment, the index of the true crowd segment of the same
            category, int64 [P]; G if the category has no crowd.
        categories: category of each predicted segment, [P].

    Returns:
        alike: whether the masks of each pair match, bool [..., G, P]
        same: whether the categories of each pair are equal, bool [G, P]
        wrong: whether each predicted segment is a false positive, bool [..., P]
        missed: whether each true segment is missed, bool [..., G]
    """
    alike = (iou > 0.5) & ~is_crowd[:, None]
    same = true_categories[:, None] == categories
    matched = alike & same
    area = joint[..., :, 1:].sum(axis=-2)
    none = np.zeros((*joint.shape[:-2], 1, len(categories)), joint.dtype)
    crowd = np.concatenate([joint[..., 2:, 1:], none], axis=-2)
    ignored = joint[..., 1, 1:] + crowd[..., crowds, np.arange(len(categories))]
    wrong = (area > 0) & ~matched.any(axis=-2)
    wrong &= np.divide(ignored, area, out=np.ones(area.shape), where=area > 0) <= 0.5
    return alike, same, wrong, ~matched.any(axis=-1) & ~is_crowd


def crowd_rows(true_segments: Sequence[Mapping], ids: np.ndarray) -> dict[int, int]:
    """
    Find the crowd segment of each category.

    Args:
        true_segments: mappings with "id", "category_id" and optionally "iscrowd" (0 or 1).
        ids: sorted ids of the true segments, [G].

    Returns:
        mapping from category id to the crowd segment's index in ``ids``
    """
    # The last crowd in the JSON counts, as in panopticapi.
    crowds = (segment for segment in true_segments if segment.get("iscrowd", 0) == 1)
    return {crowd["category_id"]: int(np.searchsorted(ids, crowd["id"])) for crowd in crowds}


def ious(joint: np.ndarray) -> np.ndarray:
    """
    Return the IoU of each pair of a true and a predicted segment, [..., G, P].

    Void is left out of the union; the IoU of two empty segments is 0.
    """
    inside, area = joint[..., 2:, 1:], joint[..., :, 1:].sum(axis=-2)
    union = joint[..., 2:, :].sum(axis=-1)[..., None] + (area - joint[..., 1, 1:])[..., None, :]
    union = union - inside
    return np.divide(inside, union, out=np.zeros(union.shape), where=union > 0)


def _joint_histogram(
    true_ids: np.ndarray,
    rows: np.ndarray,
    predicted_ids: np.ndarray,
    columns: np.ndarray,
    pixels: np.ndarray,
) -> np.ndarray:
    """
    Count the pixels that each true segment shares with each predicted segment.

    Args:
        true_ids, predicted_ids: segment ids of each run of pixels, [R].
        rows, columns: sorted ids of the true segments [G] and of the predicted segments [P].
        pixels: number of pixels of each run, [R].

    Returns:
        int64 [G + 2, P + 1]; the first two rows are for unknown ids and void pixels, the first
        column is for pixels without a predicted segment
    """
    true_index = segment_positions(true_ids, rows)
    predicted_index = segment_positions(predicted_ids, columns) - 1
    unnamed = np.unique(predicted_ids[predicted_index < 0])
    if unnamed.size:
        raise UserError(
            f"the prediction has {unnamed.size} segment id(s) that are missing from its "
            f"segments_info: {', '.join(map(str, unnamed[:10]))}"
        )
    shape = len(rows) + 2, len(columns) + 1
    pair = true_index * shape[1] + predicted_index
    # Weights make the counts float64, which is exact for these integers.
    joint = np.bincount(pair, weights=pixels, minlength=shape[0] * shape[1])
    return joint.astype(np.int64).reshape(shape)


def segment_positions(ids: np.ndarray, segment_ids: np.ndarray) -> np.ndarray:
    """Return 2 + the index of each id in the sorted ``segment_ids``; 1 for void, 0 if unknown."""
    known = np.concatenate([[VOID], segment_ids])
    position = np.searchsorted(known, ids).clip(max=len(known) - 1)
    return np.where(known[position] == ids, position + 1, 0)


def _integers(segments: Sequence[Mapping], key: str) -> np.ndarray:
    return np.array([segment[key] for segment in segments], dtype=np.int64)
