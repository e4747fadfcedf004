"""
Evaluates semantic segmentation batch by batch, without keeping the predictions.

Shape letters: H, W size of an image; K classes.
"""

import logging
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.evaluation import DatasetEvaluator
from detectron2.utils import comm

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import VOID_LABEL
from ocr_panoptic.formats.labels import has_labels, read_true_labels
from ocr_panoptic.metrics import named

from .bootstrap import bootstrap_interval, mean_iou
from .boundaries import boundary_distance, inner_boundaries, near_other_labels
from .calibration import NUM_BINS, count_calibration, expected_calibration_error
from .confusion import (
    category_scores,
    confusion_matrix,
    count_several,
    semantic_scores,
    write_confusion,
)
from .image_scores import (
    BOUNDARY_WIDTH,
    ImageScore,
    all_counts,
    semantic_losses,
    write_image_scores,
)
from .predictions import labels_of_output
from .runs import check_sizes, runs_of

logger = logging.getLogger(__name__)


class SemSegCounts(NamedTuple):
    """
    The pixel counts from which all scores of semantic segmentation are computed.

    Attributes:
        confusion: confusion matrix, int64 [K, K], rows = truth.
        boundaries: for each class, the numbers of pixels in the intersection and in the union of
            its true and its predicted inner boundary region, int64 [K, 2].
        boundary_errors: confusion matrix of only the wrong pixels that are at most 5 pixels from
            both a true and a predicted boundary, int64 [K, K], rows = truth.
        calibration: for each confidence bin, the number of pixels, the sum of their confidences and
            the number of correct pixels, float64 [15, 3]; zeros if confidences are unknown.
    """

    confusion: np.ndarray
    boundaries: np.ndarray
    boundary_errors: np.ndarray
    calibration: np.ndarray

    @classmethod
    def zeros(cls, num_classes: int) -> "SemSegCounts":
        matrix = np.zeros((num_classes, num_classes), dtype=np.int64)
        return cls(matrix, matrix[:, :2], matrix, np.zeros((NUM_BINS, 3)))

    @classmethod
    def of_image(
        cls,
        truth: np.ndarray,
        prediction: np.ndarray,
        confidence: np.ndarray | None,
        num_classes: int,
        ignore_label: int,
    ) -> "SemSegCounts":
        """Return the counts of one image from label maps and an optional confidence map, [H, W]."""
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
        counted = pixels * (true != ignore_label)

        def count(labels: np.ndarray, where: np.ndarray) -> np.ndarray:
            return np.bincount(labels, counted * where, num_classes)[:num_classes]

        common = count(true, true_region & predicted_region & (true == predicted))
        union = count(true, true_region) + count(predicted, predicted_region) - common
        wrong = pixels * (near_both & (true != predicted))
        return cls(
            confusion_matrix(true, predicted, num_classes, ignore_label, pixels),
            np.stack([common, union], axis=1).astype(np.int64),
            confusion_matrix(true, predicted, num_classes, ignore_label, wrong),
            np.zeros((NUM_BINS, 3))
            if confidence is None
            else count_calibration(truth, prediction, confidence, ignore_label),
        )

    def __add__(self, other: "SemSegCounts") -> "SemSegCounts":  # type: ignore[override]
        return SemSegCounts(*(a + b for a, b in zip(self, other, strict=True)))

    def scores(self, class_names: Sequence[str]) -> dict[str, float]:
        """
        Return Boundary IoU and calibration error in percent, named in Detectron2's style.

        - "BoundaryIoU" of each class, and "mBoundaryIoU", the mean over the classes in the truth
          (NaN if there are fewer than two).
        - "ECE", the expected calibration error, if confidences were given.
        """
        intersection, union = self.boundaries.T
        occurs = self.confusion.sum(axis=1) > 0
        iou = np.full(len(class_names), np.nan)
        np.divide(100 * intersection, union, out=iou, where=occurs)
        mean = float(np.sum(iou[occurs]) / count_several(occurs))
        scores = {"mBoundaryIoU": mean, **named("BoundaryIoU", class_names, iou.tolist())}
        if self.calibration.any():
            scores["ECE"] = 100 * expected_calibration_error(self.calibration)
        return scores


def counts_of_classes(confusion: np.ndarray) -> np.ndarray:
    """Return the numbers of correct, true and predicted pixels of each class, int64 [K, 3]."""
    return np.stack([confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)], axis=1)


class SemSegEvaluator(DatasetEvaluator):
    """
    An evaluator of IoU, mIoU with a bootstrap interval, accuracy, Boundary IoU and calibration.

    Each record of the data set must name a label PNG or a panoptic PNG. The metadata must have
    ``stuff_classes``. The optional ``label_map`` maps raw labels to classes, or to the ignored
    label 255; ``class_categories``, the category of each class, adds the IoU of each category;
    classes in ``absent_classes``, which the data lack, count in no mean.

    Args:
        dataset_name: a registered data set.
        output_dir: folder for ``confusion_matrix.csv`` and ``.png`` and ``sem_seg_per_image.csv``;
            None writes nothing.
    """

    def __init__(self, dataset_name: str, output_dir: str | os.PathLike | None = None):
        self._metadata = MetadataCatalog.get(dataset_name)
        self._class_names = list(self._metadata.stuff_classes)
        self._output_dir = output_dir
        records = DatasetCatalog.get(dataset_name)
        if not all(map(has_labels, records)):
            raise UserError(
                f"Data set {dataset_name!r} has images with neither sem_seg_file_name "
                "nor pan_seg_file_name. Each image needs a label PNG or a panoptic PNG."
            )
        self._records = {record["file_name"]: record for record in records}
        self.reset()

    def reset(self) -> None:
        self._counts = SemSegCounts.zeros(len(self._class_names))
        self._images: list[ImageScore] = []

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """
        Compare the predictions of a batch with the ground truth, and add the counts to the totals.

        Args:
            inputs: mappings with "file_name".
            outputs: mappings with "labels", integers [H, W], or "sem_seg", scores [K, H, W], and
                optionally "confidence", float [H, W], the probability of each pixel's label.
        """
        num_classes = len(self._class_names)
        for input_, output in zip(inputs, outputs, strict=True):
            prediction = labels_of_output(output, num_classes)
            record = self._records[input_["file_name"]]
            truth = read_true_labels(record, self._metadata.get("label_map"))
            confidence = output["confidence"].cpu().numpy() if "confidence" in output else None
            try:
                counts = SemSegCounts.of_image(
                    truth, prediction, confidence, num_classes, VOID_LABEL
                )
            except ValueError as error:
                truth_file = record.get("sem_seg_file_name") or record["pan_seg_file_name"]
                raise UserError(f"{truth_file}: {error}.") from error
            self._counts += counts
            losses = semantic_losses(counts.confusion, counts.boundary_errors)
            of_classes = counts_of_classes(counts.confusion)
            self._images.append(ImageScore(input_["file_name"], losses, of_classes))

    def evaluate(self) -> OrderedDict | None:
        """Return {"sem_seg": scores under Detectron2's names}; None except in the main process."""
        gathered = comm.gather((self._counts, self._images))
        if not comm.is_main_process():
            return None
        counts = sum((counts for counts, _ in gathered[1:]), gathered[0][0])
        images = [image for _, some in gathered for image in some]
        absent = self._metadata.get("absent_classes") or ()
        scores = semantic_scores(counts.confusion, self._class_names, absent)
        if class_categories := self._metadata.get("class_categories"):
            scores |= category_scores(counts.confusion, class_categories)
        scores |= counts.scores(self._class_names)
        low, high = bootstrap_interval(all_counts(images), mean_iou)
        scores |= {"mIoU_low": 100 * low, "mIoU_high": 100 * high}
        name = self._metadata.name
        if np.count_nonzero(counts.confusion.any(axis=1)) == 1:
            logger.warning(
                f"{name}: the ground truth contains only one class, but mIoU needs at least two, "
                "so it is NaN; see the IoU of that class"
            )
        if self._output_dir is not None:
            folder = Path(self._output_dir)
            write_confusion(counts.confusion, self._class_names, folder)
            write_image_scores(images, "mIoU", "sem_seg", folder)
        overall = ", ".join(f"{key} {v:.3f}" for key, v in scores.items() if "-" not in key)
        logger.info("Semantic segmentation on %s: %s", name, overall)
        return OrderedDict(sem_seg=scores)
