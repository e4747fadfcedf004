"""The scores of single images, and what each adds to the counts of a metric."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ocr_panoptic.formats.run_folder import image_scores_file, write_table


class ImageScore(NamedTuple):
    """
    Attributes:
        file_name: of the image.
        losses: of :mod:`.image_losses`.
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
