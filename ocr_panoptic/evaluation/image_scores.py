"""The scores of single images, and their losses: what they lack to a perfect score, by the kinds of
errors, which add up to it.

The score of an image is the PQ or mIoU of it alone, in percent; the loss is 100 - score.

**PQ.** Of a category that occurs in the image, with IoUs, TP, FP and FN counted there and
n = TP + FP / 2 + FN / 2,

    1 - PQ = [sum over TP of (1 - IoU) + FP / 2 + FN / 2] / n.

- "masks": the first sum, what matched segments lack to an IoU of 1;
- "confusions": of FP and FN, pairs of a predicted and a true segment with an IoU above 0.5 whose
  categories differ: the right mask, the wrong class;
- "false positives", "misses": the other FP, the other FN.

**mIoU.** Of a class that the truth of the image holds, with the union U of its true and predicted
pixels,

    1 - IoU = (pixels of it that are predicted otherwise + others that are predicted as it) / U.

So a pixel of class a that is predicted as b costs 1 / U_a and, where the truth holds b, 1 / U_b. It
is one of

- "boundaries": at most 5 pixels from a true and from a predicted boundary, as where a boundary is
  displaced;
- "false positives": else, the truth of the image has no b, though some pixel of a is right;
- "misses": else, no pixel of a is right, and the truth has b;
- "confusions": all others.

Each is divided by the number of categories or classes, over which PQ and mIoU are means.

Shape letters: N images; K classes; C categories; S counts.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ocr_panoptic.formats.run_folder import image_scores_file, write_table

BOUNDARY_WIDTH = 5  # pixels
PANOPTIC_KINDS = ("masks", "confusions", "false positives", "misses")
SEMANTIC_KINDS = ("boundaries", "confusions", "false positives", "misses")


def panoptic_losses(counts: np.ndarray, confused: np.ndarray) -> dict[str, float]:
    """
    Args:
        counts: float64 [C, 4], for each category the sum of the IoUs of matched segments, and the
            numbers of segments TP, FP and FN.
        confused: [C, 2], how many of FP and FN are confusions.

    Returns:
        the loss by kind in percent, NaN without a segment.
    """
    counts = counts.astype(np.float64)
    iou, tp, fp, fn = counts.T
    denominator = tp + 0.5 * fp + 0.5 * fn
    occurs = denominator > 0
    parts = (tp - iou, confused.sum(1) / 2, (fp - confused[:, 0]) / 2, (fn - confused[:, 1]) / 2)
    return _means(PANOPTIC_KINDS, [part[occurs] / denominator[occurs] for part in parts])


def semantic_losses(confusion: np.ndarray, boundary_errors: np.ndarray) -> dict[str, float]:
    """
    Args:
        confusion: int64 [K, K], rows = truth.
        boundary_errors: the same of the pixels near a true and a predicted boundary.

    Returns:
        the loss by kind in percent, NaN where no pixel has a class.
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
    Attributes:
        file_name: of the image.
        losses: by kind, in percent.
        classes: those that the image has counts of, integers [n].
        counts: float64 [n, S], of :func:`.bootstrap.mean_iou` or :func:`.bootstrap.mean_pq`.
    """

    file_name: str
    losses: dict[str, float]
    classes: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, file_name: str, losses: dict[str, float], counts: np.ndarray) -> "ImageScore":
        """Args: counts [K, S]; classes without any are not kept."""
        classes = np.flatnonzero(counts.any(axis=1))
        return cls(file_name, losses, classes, counts[classes].astype(np.float64))

    @property
    def score(self) -> float:
        """Return the score in percent; NaN where the image has nothing to be scored."""
        return 100 - sum(self.losses.values())


def all_counts(scores: Iterable[ImageScore], num_classes: int) -> np.ndarray:
    """The counts of images [N, K, S], by name, so that their order is that of no process."""
    scores = sorted(scores, key=lambda score: score.file_name)
    width = scores[0].counts.shape[1] if scores else 0
    counts = np.zeros((len(scores), num_classes, width))
    for image, score in zip(counts, scores, strict=True):
        image[score.classes] = score.counts
    return counts


def write_image_scores(scores: Iterable[ImageScore], metric: str, task: str, folder: Path) -> None:
    """Write a row for each image, the worst first: "file_name", the metric, the losses."""
    rows = [{"file_name": s.file_name, metric: s.score, **s.losses} for s in scores]
    rows.sort(key=lambda row: (math.isnan(row[metric]), row[metric], row["file_name"]))
    write_table(rows, image_scores_file(folder, task))
