"""Panoptic quality of Kirillov et al., "Panoptic Segmentation", CVPR 2019 (arXiv:1801.00868).

    PQ = sum of IoU over TP / (|TP| + |FP| / 2 + |FN| / 2) = SQ * RQ,
    SQ = sum of IoU over TP / |TP|,    RQ = |TP| / (|TP| + |FP| / 2 + |FN| / 2),

per category, then averaged over the categories that occur (equations 1 and 2). A predicted and a
true segment of one category match when their IoU is greater than 0.5, which makes the match
unique. Void pixels of the truth do not count, and neither does a predicted segment of which void
and crowd regions of its category cover more than half (section 4.2).

The numbers equal those of ``panopticapi.evaluation.pq_compute`` to the last digit: IoUs are
added in the same order. Of several crowd regions of one category in one image the last of the
JSON counts, as there. One difference is deliberate: areas of true segments are counted in the
PNG instead of being read from the JSON, so an IoU cannot exceed 1 and a match is unique.

Shape letters: H, W size of the image; G true segments; P predicted segments; C categories.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ocr_panoptic.coco_panoptic import MAX_ID

VOID = 0


class ImageMatches(NamedTuple):
    """Matched and unmatched segments of one image, as category ids."""

    true_positives: list[tuple[int, float]]  # (category id, IoU), by the id of the true segment
    false_positives: list[int]
    false_negatives: list[int]


def match_segments(
    true_ids: np.ndarray,
    true_segments: Sequence[Mapping],
    predicted_ids: np.ndarray,
    predicted_segments: Sequence[Mapping],
) -> ImageMatches:
    """Match the predicted segments of one image with the true ones.

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
    if true_ids.shape != predicted_ids.shape:
        raise ValueError(
            f"the prediction has size {list(predicted_ids.shape)} [H, W] and the truth "
            f"{list(true_ids.shape)}; predict at the size of the image"
        )
    # By id: this is the order in which panopticapi adds IoUs.
    rows = sorted(true_segments, key=lambda segment: segment["id"])
    columns = sorted(predicted_segments, key=lambda segment: segment["id"])
    joint = _joint_histogram(
        true_ids, _segment_ids(rows, "true"), predicted_ids, _segment_ids(columns, "predicted")
    )
    true_area = joint[2:].sum(axis=1)  # [G]
    predicted_area = joint[:, 2:].sum(axis=0)  # [P]
    void = joint[1, 2:]  # [P], pixels of each predicted segment that are void in the truth
    intersection = joint[2:, 2:]  # [G, P]

    union = true_area[:, None] + (predicted_area - void) - intersection
    iou = np.divide(intersection, union, out=np.zeros(union.shape), where=union > 0)
    true_category = _integers(rows, "category_id")
    predicted_category = _integers(columns, "category_id")
    iscrowd = np.array([segment.get("iscrowd", 0) == 1 for segment in rows], dtype=bool)
    matched = (iou > 0.5) & (true_category[:, None] == predicted_category) & ~iscrowd[:, None]

    # The last crowd of a category in the order of the JSON, as in panopticapi.
    row_of_id = {segment["id"]: row for row, segment in enumerate(rows)}
    crowd_row = {
        segment["category_id"]: row_of_id[segment["id"]]
        for segment in true_segments
        if segment.get("iscrowd", 0) == 1
    }
    false_positives = []
    for column in np.flatnonzero((predicted_area > 0) & ~matched.any(axis=0)):
        category = int(predicted_category[column])
        ignored = void[column]
        if category in crowd_row:
            ignored = ignored + intersection[crowd_row[category], column]
        if ignored / predicted_area[column] <= 0.5:
            false_positives.append(category)
    return ImageMatches(
        true_positives=[
            (int(true_category[g]), float(iou[g, p]))
            for g, p in zip(*np.nonzero(matched), strict=True)
        ],
        false_positives=false_positives,
        false_negatives=true_category[~iscrowd & ~matched.any(axis=1)].tolist(),
    )


class PanopticQuality:
    """Counters of panoptic quality per category, and the metrics that they give.

    Args:
        categories: C mappings with "id" and "isthing" (0 or 1), in the order of the panoptic
            JSON: averages are taken in this order.

    Attributes:
        iou: float64 [C], sum of the IoUs of the matched segments.
        counts: int64 [C, 3], numbers of matched (TP), predicted unmatched (FP) and true
            unmatched (FN) segments.
    """

    def __init__(self, categories: Sequence[Mapping]):
        self._row = {category["id"]: row for row, category in enumerate(categories)}
        if len(self._row) != len(categories):
            raise ValueError("Category ids are repeated in the list of categories.")
        self.isthing = np.array([category["isthing"] == 1 for category in categories], dtype=bool)
        self.iou = np.zeros(len(categories), dtype=np.float64)
        self.counts = np.zeros((len(categories), 3), dtype=np.int64)

    def add_image(
        self,
        true_ids: np.ndarray,
        true_segments: Sequence[Mapping],
        predicted_ids: np.ndarray,
        predicted_segments: Sequence[Mapping],
    ) -> None:
        """Count the segments of one image; arguments as for :func:`match_segments`.

        Raises:
            ValueError: as :func:`match_segments`, or a category id is unknown; nothing is
                counted then.
        """
        for kind, segments in (("true", true_segments), ("predicted", predicted_segments)):
            for segment in segments:
                if segment["category_id"] not in self._row:
                    raise ValueError(
                        f"{kind} segment {segment['id']} has category_id "
                        f"{segment['category_id']}, which is not one of the data set's "
                        f"{len(self._row)} categories ({_some(self._row)})"
                    )
        matches = match_segments(true_ids, true_segments, predicted_ids, predicted_segments)
        for category, iou in matches.true_positives:
            # One by one: a sum per image would round otherwise than panopticapi's.
            self.iou[self._row[category]] += iou
        matched = [category for category, _ in matches.true_positives]
        found = (matched, matches.false_positives, matches.false_negatives)
        for column, categories in enumerate(found):
            for category in categories:
                self.counts[self._row[category], column] += 1

    def per_class(self) -> dict[str, np.ndarray]:
        """ "PQ", "SQ", "RQ" of every category: float64 [C] in 0..1.

        They are NaN where the category occurs neither in the truth nor in the predictions;
        panopticapi reports 0 there, and leaves the category out of the averages like us.
        """
        tp, fp, fn = self.counts.T
        denominator = tp + 0.5 * fp + 0.5 * fn
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
            pq, sq, rq = self.iou / denominator, self.iou / tp, tp / denominator
        sq[(tp == 0) & (denominator > 0)] = 0.0
        return {"PQ": pq, "SQ": sq, "RQ": rq}

    def averages(self) -> dict[str, float]:
        """PQ, SQ, RQ in 0..1 averaged over the categories that occur.

        Keys are those of Detectron2: "PQ" for all categories, "PQ_th" for things, "PQ_st" for
        stuff, and likewise SQ and RQ; NaN where no category of the group occurs.
        """
        groups = {"": np.ones_like(self.isthing), "_th": self.isthing, "_st": ~self.isthing}
        occurs = self.counts.any(axis=1)
        per_class = self.per_class()
        return {
            metric + suffix: _sequential_mean(per_class[metric][group & occurs])
            for suffix, group in groups.items()
            for metric in ("PQ", "SQ", "RQ")
        }


def _joint_histogram(
    true_ids: np.ndarray, rows: np.ndarray, predicted_ids: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Numbers of pixels, int64 [G + 2, P + 2], of every pair of segments.

    ``rows`` [G] and ``columns`` [P] are sorted segment ids. Row and column 0 count the pixels of
    ids that are not among them, row and column 1 those of void, 2.. the segments.
    """
    # Segments are connected, by and large: looking up the runs of equal pairs along the rows of
    # the image is several times faster than looking up its pixels.
    true_ids, predicted_ids = true_ids.reshape(-1), predicted_ids.reshape(-1)
    starts = np.ones(true_ids.size, dtype=bool)
    np.not_equal(true_ids[1:], true_ids[:-1], out=starts[1:])
    starts[1:] |= predicted_ids[1:] != predicted_ids[:-1]
    starts = np.flatnonzero(starts)
    lengths = np.diff(starts, append=true_ids.size)

    true_index = _lookup(true_ids[starts], rows)
    predicted_index = _lookup(predicted_ids[starts], columns)
    unnamed = np.unique(predicted_ids[starts[predicted_index == 0]])
    if unnamed.size:
        raise ValueError(
            f"the prediction has {unnamed.size} segment ids that its segments_info does not "
            f"name: {_some(unnamed)}"
        )
    shape = len(rows) + 2, len(columns) + 2
    pair = true_index * shape[1] + predicted_index
    # Weights make the counts float64, which is exact for these integers.
    joint = np.bincount(pair, weights=lengths, minlength=shape[0] * shape[1])
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
        raise ValueError(
            f"segments_info of the {kind} segments has id {wrong[0]}; ids lie in 1..{MAX_ID}, "
            "0 is void"
        )
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if repeated.size:
        raise ValueError(f"segments_info of the {kind} segments repeats the ids {_some(repeated)}")
    return ids


def _integers(segments: Sequence[Mapping], key: str) -> np.ndarray:
    return np.array([segment[key] for segment in segments], dtype=np.int64)


def _sequential_mean(values: np.ndarray) -> float:
    # np.mean adds pairwise, panopticapi in order; the last digit depends on it.
    return float(sum(values.tolist()) / len(values)) if len(values) else float("nan")


def _some(ids: Sequence, limit: int = 10) -> str:
    ids = [int(id_) for id_ in ids]
    return ", ".join(map(str, ids[:limit])) + (", ..." if len(ids) > limit else "")
