"""Streaming evaluation of semantic segmentation: one confusion matrix, no predictions kept."""

import logging
import os
from collections import OrderedDict

import numpy as np
from detectron2.data import DatasetCatalog, MetadataCatalog
from detectron2.evaluation import DatasetEvaluator
from detectron2.utils import comm

from ocr_panoptic.label_map import read_labels

from .confusion import category_metrics, confusion_matrix, semantic_metrics
from .confusion_files import write_confusion
from .predicted_labels import labels_of_output

logger = logging.getLogger(__name__)


class SemSegEvaluator(DatasetEvaluator):
    """mIoU, fwIoU, mACC, pACC, and IoU and ACC per class; see :func:`semantic_metrics`.

    The true labels of an image are those of ``sem_seg_file_name`` in its record; classes and
    ignored label are ``stuff_classes`` and ``ignore_label`` of the metadata, as in Detectron2.
    Where the metadata has ``label_map``, the file's labels go through it first
    (:func:`apply_label_map`). Where it has ``class_categories``, the category of each class,
    :func:`category_metrics` join the others, and the results are those of cityscapesscripts.

    Args:
        dataset_name: a registered data set.
        output_dir: folder for ``confusion_matrix.csv`` and ``.png``; nothing is written by default.

    Attributes:
        confusion: int64 [K, K], rows = truth: pixels counted by this process.
        total_confusion: the same over all processes; set by :meth:`evaluate` in the main one.
    """

    def __init__(self, dataset_name: str, output_dir: str | os.PathLike | None = None):
        metadata = MetadataCatalog.get(dataset_name)
        self._dataset_name = dataset_name
        self._class_names = list(metadata.stuff_classes)
        self._ignore_label = metadata.ignore_label
        self._label_map = metadata.get("label_map")
        self._class_categories = metadata.get("class_categories")
        self._output_dir = output_dir
        records = DatasetCatalog.get(dataset_name)
        if not all("sem_seg_file_name" in record for record in records):
            raise ValueError(
                f"Data set {dataset_name!r} has records without 'sem_seg_file_name'; semantic "
                "segmentation needs a label PNG per image. Register the '_separated' variant of a "
                "panoptic data set of Detectron2's."
            )
        self._truth_files = {r["file_name"]: r["sem_seg_file_name"] for r in records}
        self.reset()

    def reset(self) -> None:
        num_classes = len(self._class_names)
        self.confusion = np.zeros((num_classes, num_classes), dtype=np.int64)
        self.total_confusion: np.ndarray | None = None

    def process(self, inputs: list[dict], outputs: list[dict]) -> None:
        """Count the pixels of a batch.

        Args:
            inputs: mappings with "file_name".
            outputs: mappings with "labels", integers [H, W], or "sem_seg", scores [K, H, W].

        Raises:
            FileNotFoundError, ValueError: the truth is missing or unreadable, holds other labels
                or has another size than the prediction; the file is named.
        """
        num_classes = len(self._class_names)
        for input_, output in zip(inputs, outputs, strict=True):
            prediction = labels_of_output(output, num_classes, input_["file_name"])
            truth_file = self._truth_files.get(input_["file_name"])
            if truth_file is None:
                raise ValueError(
                    f"{input_['file_name']}: no such image in {self._dataset_name!r}; "
                    "evaluate the data set that the loader reads."
                )
            truth = read_labels(truth_file, self._label_map)
            try:
                self.confusion += confusion_matrix(
                    truth, prediction, num_classes, self._ignore_label
                )
            except ValueError as error:
                raise ValueError(f"{truth_file}: {error}.") from error

    def evaluate(self) -> OrderedDict | None:
        """{"sem_seg": metrics in percent} in the main process, None in the others."""
        gathered = comm.gather(self.confusion)
        if not comm.is_main_process():
            return None
        self.total_confusion = np.sum(gathered, axis=0)
        metrics = semantic_metrics(self.total_confusion, self._class_names)
        if self._class_categories is not None:
            metrics.update(category_metrics(self.total_confusion, self._class_categories))
        if self._output_dir is not None:
            write_confusion(self.total_confusion, self._class_names, self._output_dir)
        logger.info(
            "Semantic segmentation on %s: %s",
            self._dataset_name,
            ", ".join(f"{name} {value:.3f}" for name, value in metrics.items() if "-" not in name),
        )
        return OrderedDict(sem_seg=metrics)
