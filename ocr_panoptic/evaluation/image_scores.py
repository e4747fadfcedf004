"""
The score of each image, and the points lost to each kind of error.

The score of an image is its own PQ or mIoU, in percent. The losses are in percentage points, and
add up to 100 - score.

**PQ.** For a category that occurs in the image, with TP, FP and FN segments and
n = TP + FP / 2 + FN / 2,

    1 - PQ = [sum over TP of (1 - IoU) + FP / 2 + FN / 2] / n.

The kinds of errors are:

- "masks": inaccurate masks of TP (the sum over TP);
- "confusions": FP and FN whose masks match each other with an IoU above 0.5, but whose categories
  differ;
- "false positives": the other FP;
- "misses": the other FN.

**mIoU.** For a class that occurs in the truth of the image, with the union U of its true and
predicted pixels,

    1 - IoU = (pixels of the class predicted as another class
               + pixels of other classes predicted as the class) / U.

So a pixel of class a that is predicted as b costs 1 / U_a, and also 1 / U_b if b occurs in the
truth of the image. The kind of the error is the first that applies:

- "boundaries": the pixel is at most 5 pixels from both a true and a predicted boundary;
- "false positives": b does not occur in the truth, and some pixel of a is correct;
- "misses": no pixel of a is correct, and b occurs in the truth;
- "confusions": all other errors.

PQ is a mean over the categories that occur, and mIoU a mean over the classes that occur in the
truth. So each loss is divided by the number of these categories or classes.

Shape letters: N images; K classes; C categories; S counts per class (3 for mIoU, 4 for PQ).
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .stored import image_scores_file, write_table

BOUNDARY_WIDTH = 5  # pixels
PANOPTIC_KINDS = ("masks", "confusions", "false positives", "misses")
SEMANTIC_KINDS = ("boundaries", "confusions", "false positives", "misses")


def panoptic_losses(counts: np.ndarray, confused: np.ndarray) -> dict[str, float]:
    """
    Return the percentage points of PQ lost to each kind of error; NaN if there are no segments.

    Args:
        counts: for each category, the sum of the IoUs of its matched segments, and its numbers of
            TP, FP and FN segments, float64 [C, 4].
        confused: for each category, the numbers of FP and FN whose masks match a segment of another
            category, [C, 2].
    """
    counts = counts.astype(np.float64)
    iou, tp, fp, fn = counts.T
    denominator = tp + 0.5 * fp + 0.5 * fn
    occurs = denominator > 0
    parts = (tp - iou, confused.sum(1) / 2, (fp - confused[:, 0]) / 2, (fn - confused[:, 1]) / 2)
    return _means(PANOPTIC_KINDS, [part[occurs] / denominator[occurs] for part in parts])


def semantic_losses(confusion: np.ndarray, boundary_errors: np.ndarray) -> dict[str, float]:
    """
    Return the percentage points of mIoU lost to each kind of error; NaN if the truth is empty.

    Args:
        confusion: confusion matrix of the image, int64 [K, K], rows = truth.
        boundary_errors: the part of ``confusion`` that counts wrong pixels near both a true and a
            predicted boundary, int64 [K, K].
    """
    right = confusion.diagonal()
    true = confusion.sum(axis=1)
    union = true + confusion.sum(axis=0) - right
    occurs = true > 0
    cost = np.divide(1, union, out=np.zeros(len(union)), where=occurs)
    cost = cost[:, None] + cost
    np.fill_diagonal(cost, 0)
    other = confusion - boundary_errors
    missed, invented = ((right == 0) & occurs)[:, None], ~occurs
    kinds = (
        boundary_errors,
        other * (missed == invented),
        other * (~missed & invented),
        other * (missed & ~invented),
    )
    # Only the rows of classes that occur hold pixels, so their mean covers all errors.
    return _means(SEMANTIC_KINDS, [(pixels * cost).sum(axis=1)[occurs] for pixels in kinds])


def _means(kinds: tuple[str, ...], parts: list[np.ndarray]) -> dict[str, float]:
    return {
        kind: 100 * float(part.mean()) if len(part) else float("nan")
        for kind, part in zip(kinds, parts, strict=True)
    }


class ImageScore(NamedTuple):
    """The score of an image, its losses, and the counts from which its score is computed."""

    file_name: str
    losses: dict[str, float]  # kind of error -> percentage points lost to it
    counts: np.ndarray  # counts of each class, [K, S], from which mIoU or PQ is computed
    objects: dict[str, int] = {}  # numbers of true and of predicted objects, for a panoptic image

    @property
    def score(self) -> float:
        """Return PQ or mIoU in percent; NaN if the image has no segments or no labelled pixels."""
        return 100 - sum(self.losses.values())


def all_counts(scores: Iterable[ImageScore]) -> np.ndarray:
    """Stack the ``counts`` of all images into [image, class, count], sorted by file name."""
    return np.array([s.counts for s in sorted(scores, key=lambda score: score.file_name)])


def write_image_scores(scores: Iterable[ImageScore], metric: str, task: str, folder: Path) -> None:
    """Write a CSV of all images, worst first: file name, score (``metric``), losses, objects."""
    rows: list[dict[str, Any]] = [
        {"file_name": s.file_name, metric: s.score, **s.losses, **s.objects} for s in scores
    ]
    rows.sort(key=lambda row: (math.isnan(row[metric]), row[metric], row["file_name"]))
    write_table(rows, image_scores_file(folder, task))
