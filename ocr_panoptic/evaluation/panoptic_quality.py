"""
Panoptic quality of Kirillov et al., "Panoptic Segmentation", CVPR 2019 (arXiv:1801.00868).

    PQ = sum of IoU over TP / (|TP| + |FP| / 2 + |FN| / 2) = SQ * RQ,
    SQ = sum of IoU over TP / |TP|,    RQ = |TP| / (|TP| + |FP| / 2 + |FN| / 2),

for each category, then averaged over the categories that occur (equations 1 and 2).
:mod:`.segment_matching` defines which segments match.

The results equal ``panopticapi.evaluation.pq_compute`` to the last digit, with one exception: the
area of a true segment is its number of pixels in the PNG, not the area in the JSON.

Shape letters: C categories.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from .segment_matching import ImageMatches


class PanopticQuality:
    """
    Counters of panoptic quality for each category, and the metrics computed from them.

    Args:
        categories: C mappings with "id" and "isthing" (0 or 1), in the order of the panoptic JSON.

    Attributes:
        iou: sum of the IoUs of each category's matched segments, float64 [C].
        counts: each category's numbers of matched segments (TP), unmatched predicted segments (FP)
            and unmatched true segments (FN), int64 [C, 3].
    """

    def __init__(self, categories: Sequence[Mapping]):
        self._row = {category["id"]: row for row, category in enumerate(categories)}
        self.isthing = np.array([category["isthing"] == 1 for category in categories], dtype=bool)
        self.iou = np.zeros(len(categories), dtype=np.float64)
        self.counts = np.zeros((len(categories), 3), dtype=np.int64)

    def add(self, matches: ImageMatches) -> None:
        """Add an image's matched and unmatched segments to the counters."""
        for category, iou in matches.true_positives:
            # One at a time, as panopticapi does: a sum per image would be rounded differently.
            self.iou[self._row[category]] += iou
        matched = [category for category, _ in matches.true_positives]
        counted = (matched, matches.false_positives, matches.false_negatives)
        for column, categories in enumerate(counted):
            for category in categories:
                self.counts[self._row[category], column] += 1

    def __iadd__(self, other: "PanopticQuality") -> "PanopticQuality":
        """Add the counters of another PanopticQuality with the same categories."""
        self.iou += other.iou
        self.counts += other.counts
        return self

    def statistics(self) -> np.ndarray:
        """Return each category's sum of IoUs and its numbers of TP, FP and FN, float64 [C, 4]."""
        return np.column_stack([self.iou, self.counts])

    def confused(self, matches: ImageMatches) -> np.ndarray:
        """Count the FP and FN whose masks match a segment of another category, int64 [C, 2]."""
        confused = np.zeros((len(self.iou), 2), dtype=np.int64)
        for true, predicted in matches.confusions:
            confused[self._row[predicted], 0] += 1
            confused[self._row[true], 1] += 1
        return confused

    def per_class(self) -> dict[str, np.ndarray]:
        """
        Return "PQ", "SQ", "RQ" of every category, float64 [C] in 0..1.

        The values are NaN if a category occurs neither in the truth nor in the predictions;
        panopticapi reports 0 instead.
        """
        tp, fp, fn = self.counts.T
        denominator = tp + 0.5 * fp + 0.5 * fn
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
            pq, sq, rq = self.iou / denominator, self.iou / tp, tp / denominator
        sq[(tp == 0) & (denominator > 0)] = 0.0
        return {"PQ": pq, "SQ": sq, "RQ": rq}

    def averages(self) -> dict[str, float]:
        """
        Return PQ, SQ, RQ in 0..1, averaged over the categories that occur.

        The keys are "PQ" for all categories, "PQ_th" for things and "PQ_st" for stuff; SQ and RQ
        have the same suffixes. A value is NaN if no such category occurs.
        """
        groups = {"": np.ones_like(self.isthing), "_th": self.isthing, "_st": ~self.isthing}
        occurs = self.counts.any(axis=1)
        averages = {}
        for metric, of_class in self.per_class().items():
            for suffix, group in groups.items():
                values = of_class[group & occurs].tolist()
                # np.mean adds pairwise, panopticapi in order; the order changes the last digit.
                averages[metric + suffix] = sum(values) / len(values) if values else float("nan")
        return averages
