"""Detectron2's mapper for panoptic data, with messages that name the file at fault."""

import numpy as np
from detectron2.config import configurable
from detectron2.data import DatasetMapper
from detectron2.data.detection_utils import read_image

from ocr_panoptic.data.pictures import read_file


class PanopticDatasetMapper(DatasetMapper):
    """Detectron2's :class:`DatasetMapper`, whose results it returns unchanged.

    It looks closer only where that fails, or where labels are no classes of the model:

    Raises:
        FileNotFoundError: the image or the semantic PNG is missing.
        ValueError: either is broken or truncated, their sizes differ, or a label is neither
            0..num_sem_seg_classes-1 nor the ignored one.
    """

    @configurable
    def __init__(
        self, is_train: bool, *, num_sem_seg_classes: int, ignore_value: int = 255, **kwargs
    ):
        """
        Args:
            num_sem_seg_classes: classes of the semantic head, "things" included.
            ignore_value: label that the loss ignores.
            kwargs: of Detectron2's mapper.
        """
        super().__init__(is_train, **kwargs)
        self.num_sem_seg_classes = num_sem_seg_classes
        self.ignore_value = ignore_value

    @classmethod
    def from_config(cls, cfg, is_train: bool = True) -> dict:
        return {
            **super().from_config(cfg, is_train),
            "num_sem_seg_classes": cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES,
            "ignore_value": cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE,
        }

    def __call__(self, dataset_dict: dict) -> dict:
        try:
            sample = super().__call__(dataset_dict)
        except Exception as error:
            explain_files(dataset_dict, error)
            raise
        if "sem_seg" in sample:
            if sample["sem_seg"].shape != sample["image"].shape[1:]:
                explain_files(dataset_dict, None)
            labels = sample["sem_seg"]
            outside = (labels >= self.num_sem_seg_classes) & (labels != self.ignore_value)
            if outside.any():
                self._explain_labels(dataset_dict["sem_seg_file_name"])
        return sample

    def _explain_labels(self, path: str) -> None:
        labels = read_image(path, "L")
        outside = labels[(labels >= self.num_sem_seg_classes) & (labels != self.ignore_value)]
        counted = zip(*np.unique(outside, return_counts=True), strict=True)
        listed = ", ".join(f"{label} ({pixels} pixels)" for label, pixels in counted)
        raise ValueError(
            f"{path}: labels outside 0..{self.num_sem_seg_classes - 1} and {self.ignore_value}: "
            f"{listed}. MODEL.SEM_SEG_HEAD.NUM_CLASSES is {self.num_sem_seg_classes}; it must be "
            "the number of stuff classes plus one. If the data set has changed, prepare it again."
        )


def explain_files(dataset_dict: dict, error: Exception | None) -> None:
    """Raise an error that names the file at fault, if a file is."""
    image = read_file(dataset_dict["file_name"], "BGR", "image", error)
    if "sem_seg_file_name" in dataset_dict:
        path = dataset_dict["sem_seg_file_name"]
        labels = read_file(path, "L", "semantic PNG", error)
        if labels.shape[:2] != image.shape[:2]:
            raise ValueError(
                f"{path}: the semantic PNG has {labels.shape[1]}x{labels.shape[0]} pixels, the "
                f"image {dataset_dict['file_name']} {image.shape[1]}x{image.shape[0]} "
                "(width x height). Prepare the data set again."
            ) from error
