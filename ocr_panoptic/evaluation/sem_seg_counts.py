"""Counts of images, whose sums give the metrics of semantic segmentation.

Shape letters: H, W size of an image; K classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ocr_panoptic.metrics import named

from .boundaries import boundary_counts, boundary_distance, inner_boundaries, near_other_labels
from .calibration import NUM_BINS, count_calibration, expected_calibration_error
from .confusion import confusion_matrix
from .image_scores import BOUNDARY_WIDTH
from .runs import check_sizes, runs_of


class SemSegCounts(NamedTuple):
    """
    Attributes:
        confusion: int64 [K, K], rows = truth.
        boundaries: int64 [K, 2], see :func:`boundary_counts`.
        boundary_errors: int64 [K, K], wrong pixels at most BOUNDARY_WIDTH from a true and from a
            predicted boundary.
        calibration: float64 [15, 3], see :func:`count_calibration`; zeros without confidences.
    """

    confusion: np.ndarray
    boundaries: np.ndarray
    boundary_errors: np.ndarray
    calibration: np.ndarray

    @classmethod
    def none(cls, num_classes: int) -> "SemSegCounts":
        matrix = np.zeros((num_classes, num_classes), dtype=np.int64)
        return cls(
            matrix,
            np.zeros((num_classes, 2), dtype=np.int64),
            matrix,
            np.zeros((NUM_BINS, 3)),
        )

    @classmethod
    def of_image(
        cls,
        truth: np.ndarray,
        prediction: np.ndarray,
        confidence: np.ndarray | None,
        num_classes: int,
        ignore_label: int,
    ) -> "SemSegCounts":
        """
        Count the pixels of an image.

        Args:
            truth, prediction, num_classes, ignore_label: see :func:`confusion_matrix`.
            confidence: float [H, W], probability of the predicted labels.
        """
        check_sizes(truth, prediction)
        distance = boundary_distance(truth.shape)
        near_true = near_other_labels(truth, {BOUNDARY_WIDTH, distance})
        near_predicted = near_other_labels(prediction, {BOUNDARY_WIDTH, distance})
        values, pixels = runs_of(
            truth,
            prediction,
            inner_boundaries(near_true[distance], distance),
            inner_boundaries(near_predicted[distance], distance),
            near_true[BOUNDARY_WIDTH] & near_predicted[BOUNDARY_WIDTH],
        )
        true, predicted, true_region, predicted_region, near_both = values

        def confusion(pixels: np.ndarray) -> np.ndarray:
            return confusion_matrix(true, predicted, num_classes, ignore_label, pixels)

        return cls(
            confusion(pixels),
            boundary_counts(
                true,
                predicted,
                true_region,
                predicted_region,
                pixels * (true != ignore_label),
                num_classes,
            ),
            confusion(pixels * (near_both & (true != predicted))),
            np.zeros((NUM_BINS, 3))
            if confidence is None
            else count_calibration(truth, prediction, confidence, ignore_label),
        )

    def __add__(self, other: "SemSegCounts") -> "SemSegCounts":
        return SemSegCounts(*(a + b for a, b in zip(self, other, strict=True)))

    def scores(self, class_names: Sequence[str]) -> dict[str, float]:
        """
        Return the scores of boundaries and of confidence by Detectron2's names.

        - "BoundaryIoU" of a class, and "mBoundaryIoU", the mean over classes in the truth.
        - "ECE", if there are confidences.
        """
        intersection, union = self.boundaries.T
        occurs = self.confusion.any(axis=1)
        iou = np.full(len(class_names), np.nan)
        np.divide(100 * intersection, union, out=iou, where=occurs)
        mean = float(iou[occurs].mean()) if occurs.any() else float("nan")
        scores = {"mBoundaryIoU": mean, **named("BoundaryIoU", class_names, iou.tolist())}
        if self.calibration.any():
            scores["ECE"] = 100 * expected_calibration_error(self.calibration)
        return scores


def counts_of_classes(confusion: np.ndarray) -> np.ndarray:
    """Return the right, true and predicted pixels of each class, int64 [K, 3]."""
    return np.stack([confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)], axis=1)
