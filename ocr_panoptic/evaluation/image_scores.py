"""
The score of each image, and the points that it loses to each kind of error.

The score of an image is its own PQ or mIoU, in percent. Its losses add up to 100 - score.

**PQ.** For a category that occurs in the image, with its IoUs, TP, FP and FN and
n = TP + FP / 2 + FN / 2,

    1 - PQ = [sum over TP of (1 - IoU) + FP / 2 + FN / 2] / n.

- "masks": the first sum;
- "confusions": the FP and FN of pairs of a predicted and a true segment that have an IoU above 0.5
  and different categories (right mask, wrong class);
- "false positives", "misses": the other FP, the other FN.

**mIoU.** For a class that occurs in the truth of the image, with the union U of its true and
predicted pixels,

    1 - IoU = (its pixels with another prediction + other pixels predicted as this class) / U.

So a pixel of class a that is predicted as b costs 1 / U_a, and also 1 / U_b if b occurs in the
truth of the image. The kind of its error is the first that applies:

- "boundaries": it is at most 5 pixels from a true and from a predicted boundary, as if a boundary
  were displaced;
- "false positives": b does not occur in the truth, and some pixel of a is correct;
- "misses": no pixel of a is correct, and b occurs in the truth;
- "confusions": all other errors.

PQ and mIoU are means over categories or classes, so each loss is divided by their number.

Shape letters: N images; K classes; C categories; S counts.
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
    Return the loss of an image by kind, in percent; NaN without a segment.

    Args:
        counts: float64 [C, 4], for each category the sum of the IoUs of matched segments, and the
            numbers of segments TP, FP and FN.
        confused: [C, 2], how many of FP and FN are confusions.
    """
    counts = counts.astype(np.float64)
    iou, tp, fp, fn = counts.T
    denominator = tp + 0.5 * fp + 0.5 * fn
    occurs = denominator > 0
    parts = (tp - iou, confused.sum(1) / 2, (fp - confused[:, 0]) / 2, (fn - confused[:, 1]) / 2)
    return _means(PANOPTIC_KINDS, [part[occurs] / denominator[occurs] for part in parts])


def semantic_losses(confusion: np.ndarray, boundary_errors: np.ndarray) -> dict[str, float]:
    """
    Return the loss of an image by kind, in percent; NaN if no pixel has a class.

    Args:
        confusion: int64 [K, K], rows = truth.
        boundary_errors: int64 [K, K], wrong pixels near a true and a predicted boundary.
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
    # The mean over the rows that hold pixels is the sum over all pairs, divided by the classes.
    return _means(SEMANTIC_KINDS, [(pixels * cost).sum(axis=1)[occurs] for pixels in kinds])


def _means(kinds: tuple[str, ...], parts: list[np.ndarray]) -> dict[str, float]:
    return {
        kind: 100 * float(part.mean()) if len(part) else float("nan")
        for kind, part in zip(kinds, parts, strict=True)
    }


class ImageScore(NamedTuple):
    """
    The score of an image, with its losses and the counts behind it.

    Attributes:
        file_name: path of the image.
        losses: loss by kind, in percent.
        counts: [K, S], see :func:`.bootstrap.mean_iou` and :func:`.bootstrap.mean_pq`.
    """

    file_name: str
    losses: dict[str, float]
    counts: np.ndarray

    @property
    def score(self) -> float:
        """The score in percent; NaN for an image without segments or classes."""
        return 100 - sum(self.losses.values())


def all_counts(scores: Iterable[ImageScore]) -> np.ndarray:
    """
    Stack the counts of all images, in the order of their file names: [N, K, S].

    The order does not depend on the number of processes.
    """
    return np.array([s.counts for s in sorted(scores, key=lambda score: score.file_name)])


def write_image_scores(scores: Iterable[ImageScore], metric: str, task: str, folder: Path) -> None:
    """Write a row for each image, the worst first: "file_name", the metric, the losses."""
    rows: list[dict[str, Any]] = [
        {"file_name": s.file_name, metric: s.score, **s.losses} for s in scores
    ]
    rows.sort(key=lambda row: (math.isnan(row[metric]), row[metric], row["file_name"]))
    write_table(rows, image_scores_file(folder, task))
