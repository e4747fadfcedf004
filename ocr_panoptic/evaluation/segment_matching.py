"""The segments of one image that match, by their masks or by their boundaries too.

A predicted and a true segment of one category match when their IoU is greater than 0.5, which makes
the match unique. Void pixels of the truth do not count, and neither does a predicted segment of
which void and crowd regions of its category cover more than half (Kirillov et al., "Panoptic
Segmentation", CVPR 2019, section 4.2). For Boundary PQ the IoU of a pair is the smaller one of its
IoU and its Boundary IoU (Cheng et al., "Boundary IoU", CVPR 2021, section 6; see
:mod:`.boundaries`), and all else is the same.

Of several crowd regions of one category in an image the last of the JSON counts, as in panopticapi.

Shape letters: H, W size of the image; G true segments; P predicted segments; R runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import MAX_ID

from .boundaries import boundary_distance, inner_boundaries, near_other_labels
from .runs import check_sizes, runs_of

VOID = 0
UNNAMED = -1  # no segment has it


class ImageMatches(NamedTuple):
    """Matched and unmatched segments of one image, as category ids."""

    true_positives: list[tuple[int, float]]  # (category id, IoU), by the id of the true segment
    false_positives: list[int]
    false_negatives: list[int]
    # (true, predicted): among the unmatched ones, pairs that match but for their categories.
    confusions: list[tuple[int, int]]


class SegmentOverlaps:
    """The overlaps of the true and the predicted segments of one image.

    Args:
        true_ids: integers [H, W], segment id per pixel; 0, and ids that ``true_segments`` does not
            name, belong to no segment. Only 0 is void.
        true_segments: G mappings with "id", "category_id" and optionally "iscrowd" (0 or 1).
        predicted_ids: integers [H, W], 0 where nothing is predicted.
        predicted_segments: P mappings with "id" and "category_id". One that no pixel shows is
            as good as absent.

    Raises:
        ValueError: sizes differ, an id is 0, repeated or outside 0..2**24 - 1, or
            ``predicted_ids`` holds an id that ``predicted_segments`` does not name.
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
        # By id: this is the order in which panopticapi adds IoUs.
        self._rows = sorted(true_segments, key=lambda segment: segment["id"])
        self._columns = sorted(predicted_segments, key=lambda segment: segment["id"])
        self._known = _segment_ids(self._rows, "true"), _segment_ids(self._columns, "predicted")
        (true, predicted), pixels = runs_of(true_ids, predicted_ids)
        self._joint = _joint_histogram(true, self._known[0], predicted, self._known[1], pixels)
        self._iou = _ious(self._joint)
        # The last crowd of a category in the order of the JSON, as in panopticapi.
        row_of_id = {segment["id"]: row for row, segment in enumerate(self._rows)}
        self._crowd_row = {
            segment["category_id"]: row_of_id[segment["id"]]
            for segment in true_segments
            if segment.get("iscrowd", 0) == 1
        }

    def matches(self) -> ImageMatches:
        """Return the matches of panoptic quality."""
        return self._matches(self._iou)

    def boundary_matches(self) -> ImageMatches:
        """Return the matches of Boundary PQ."""
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
        return self._matches(np.minimum(self._iou, _ious(joint)))

    def _matches(self, iou: np.ndarray) -> ImageMatches:
        """Args: float64 [G, P]."""
        true_category = _integers(self._rows, "category_id")
        predicted_category = _integers(self._columns, "category_id")
        iscrowd = np.array([s.get("iscrowd", 0) == 1 for s in self._rows], dtype=bool)
        alike = (iou > 0.5) & ~iscrowd[:, None]
        same_category = true_category[:, None] == predicted_category
        matched = alike & same_category

        predicted_area = self._joint[:, 2:].sum(axis=0)
        false_positives = []
        for column in np.flatnonzero((predicted_area > 0) & ~matched.any(axis=0)):
            ignored = self._joint[1, 2 + column]
            crowd = self._crowd_row.get(int(predicted_category[column]))
            if crowd is not None:
                ignored = ignored + self._joint[2 + crowd, 2 + column]
            if ignored / predicted_area[column] <= 0.5:
                false_positives.append(column)
        wrong = np.zeros(len(self._columns), dtype=bool)
        wrong[false_positives] = True
        return ImageMatches(
            true_positives=[
                (int(true_category[g]), float(iou[g, p]))
                for g, p in zip(*np.nonzero(matched), strict=True)
            ],
            false_positives=predicted_category[wrong].tolist(),
            false_negatives=true_category[~iscrowd & ~matched.any(axis=1)].tolist(),
            confusions=[
                (int(true_category[g]), int(predicted_category[p]))
                for g, p in zip(*np.nonzero(alike & ~same_category & wrong), strict=True)
            ],
        )


def match_segments(
    true_ids: np.ndarray,
    true_segments: Sequence[Mapping],
    predicted_ids: np.ndarray,
    predicted_segments: Sequence[Mapping],
) -> ImageMatches:
    """:meth:`SegmentOverlaps.matches` of the arguments of that class."""
    return SegmentOverlaps(true_ids, true_segments, predicted_ids, predicted_segments).matches()


def _ious(joint: np.ndarray) -> np.ndarray:
    """float64 [G, P] of a joint histogram, 0 for an empty pair; void is left out of the union."""
    true_area = joint[2:].sum(axis=1)  # [G]
    predicted_area = joint[:, 2:].sum(axis=0)  # [P]
    void = joint[1, 2:]  # [P], pixels of each predicted segment that are void in the truth
    intersection = joint[2:, 2:]  # [G, P]
    union = true_area[:, None] + (predicted_area - void) - intersection
    return np.divide(intersection, union, out=np.zeros(union.shape), where=union > 0)


def _joint_histogram(
    true_ids: np.ndarray,
    rows: np.ndarray,
    predicted_ids: np.ndarray,
    columns: np.ndarray,
    pixels: np.ndarray,
) -> np.ndarray:
    """Numbers of pixels, int64 [G + 2, P + 2], of every pair of segments.

    The ids and ``pixels`` are those of runs [R], see :func:`runs_of`. ``rows`` [G] and ``columns``
    [P] are sorted segment ids. Row and column 0 count the pixels of ids that are not among them,
    row and column 1 those of void, 2.. the segments.
    """
    true_index, predicted_index = _lookup(true_ids, rows), _lookup(predicted_ids, columns)
    unnamed = np.unique(predicted_ids[predicted_index == 0])
    if unnamed.size:
        raise UserError(
            f"the prediction has {unnamed.size} segment ids that its segments_info does not "
            f"name: {some_ids(unnamed)}"
        )
    shape = len(rows) + 2, len(columns) + 2
    pair = true_index * shape[1] + predicted_index
    # Weights make the counts float64, which is exact for these integers.
    joint = np.bincount(pair, weights=pixels, minlength=shape[0] * shape[1])
    return joint.astype(np.int64).reshape(shape)


def _lookup(ids: np.ndarray, segment_ids: np.ndarray) -> np.ndarray:
    """0 for an id that is not among the sorted ``segment_ids``, 1 for void, else 2 + position."""
    known = np.concatenate([[VOID], segment_ids])
    position = np.searchsorted(known, ids).clip(max=len(known) - 1)
    return np.where(known[position] == ids, position + 1, 0)


def _segment_ids(segments: Sequence[Mapping], kind: str) -> np.ndarray:
    """The ids of sorted segments, int64, after checking them."""
    ids = _integers(segments, "id")
    wrong = ids[(ids <= VOID) | (ids > MAX_ID)]
    if wrong.size:
        raise UserError(
            f"segments_info of the {kind} segments has id {wrong[0]}; ids lie in 1..{MAX_ID}, "
            "0 is void"
        )
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if repeated.size:
        raise UserError(
            f"segments_info of the {kind} segments repeats the ids {some_ids(repeated)}"
        )
    return ids


def _integers(segments: Sequence[Mapping], key: str) -> np.ndarray:
    return np.array([segment[key] for segment in segments], dtype=np.int64)


def some_ids(ids: Iterable, limit: int = 10) -> str:
    """The first ones, for a message."""
    ids = [int(id_) for id_ in ids]
    return ", ".join(map(str, ids[:limit])) + (", ..." if len(ids) > limit else "")
