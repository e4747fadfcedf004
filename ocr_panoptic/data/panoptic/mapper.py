"""Detectron2's mapper for panoptic data, with this project's reading of files."""

import copy

import numpy as np
import torch
from detectron2.config import configurable
from detectron2.data import DatasetMapper
from detectron2.data import detection_utils as utils

from ocr_panoptic.data.channel_input import ChannelInput
from ocr_panoptic.data.image_size import check_image_size
from ocr_panoptic.label_png import read_label_png
from ocr_panoptic.pictures import COLOURS, read_picture


class PanopticDatasetMapper(DatasetMapper):
    """Detectron2's :class:`DatasetMapper`, whose results it returns for every file that Detectron2
    reads well. Images of 16 bits are scaled, those of any number of channels read, and a
    semantic PNG's palette gives indices, not colours.

    Raises:
        FileNotFoundError: the image or the semantic PNG is missing.
        ValueError: either is broken or truncated, their sizes differ or are not the record's, or a
            label is neither 0..num_sem_seg_classes-1 nor the ignored one.
    """

    @configurable
    def __init__(
        self,
        is_train: bool,
        *,
        num_sem_seg_classes: int,
        ignore_value: int = 255,
        channels: int = COLOURS,
        **kwargs,
    ):
        """
        Args:
            num_sem_seg_classes: classes of the semantic head, "things" included.
            ignore_value: label that the loss ignores.
            channels: of the images.
            kwargs: of Detectron2's mapper.
        """
        super().__init__(is_train, **kwargs)
        self.num_sem_seg_classes = num_sem_seg_classes
        self.ignore_value = ignore_value
        self.channels = channels

    @classmethod
    def from_config(cls, cfg, is_train: bool = True) -> dict:
        return {
            **super().from_config(cfg, is_train),
            "num_sem_seg_classes": cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES,
            "ignore_value": cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE,
            "channels": cfg.INPUT.get("CHANNELS", COLOURS),  # Detectron2's own config has none
        }

    def __call__(self, dataset_dict: dict) -> dict:
        record = copy.deepcopy(dataset_dict)
        image = read_picture(record["file_name"], self.image_format, self.channels)
        check_image_size(record, image)
        path = record.pop("sem_seg_file_name", None)
        labels = None if path is None else self._labels(path, record)
        inputs = ChannelInput(image, sem_seg=labels)
        transforms = self.augmentations(inputs)
        size = inputs.image.shape[:2]
        record["image"] = torch.as_tensor(np.ascontiguousarray(inputs.image.transpose(2, 0, 1)))
        if labels is not None:
            record["sem_seg"] = torch.as_tensor(inputs.sem_seg.astype(np.int64))
            if self._outside(record["sem_seg"]).any():
                self._explain_labels(path, labels)
        if self.proposal_topk is not None:
            utils.transform_proposals(record, size, transforms, proposal_topk=self.proposal_topk)
        if not self.is_train:
            record.pop("annotations", None)
        elif "annotations" in record:
            self._transform_annotations(record, transforms, size)
        return record

    def _labels(self, path: str, record: dict) -> np.ndarray:
        labels = read_label_png(path, "semantic PNG")
        if labels.shape != (record["height"], record["width"]):
            raise ValueError(
                f"{path}: the semantic PNG has {labels.shape[1]}x{labels.shape[0]} pixels, the "
                f"image {record['file_name']} {record['width']}x{record['height']} "
                "(width x height). Prepare the data set again."
            )
        return labels

    def _outside(self, labels: np.ndarray | torch.Tensor) -> np.ndarray | torch.Tensor:
        return (labels >= self.num_sem_seg_classes) & (labels != self.ignore_value)

    def _explain_labels(self, path: str, labels: np.ndarray) -> None:
        outside = labels[self._outside(labels)]
        counted = zip(*np.unique(outside, return_counts=True), strict=True)
        listed = ", ".join(f"{label} ({pixels} pixels)" for label, pixels in counted)
        raise ValueError(
            f"{path}: labels outside 0..{self.num_sem_seg_classes - 1} and {self.ignore_value}: "
            f"{listed}. MODEL.SEM_SEG_HEAD.NUM_CLASSES is {self.num_sem_seg_classes}; it must be "
            "the number of stuff classes plus one. If the data set has changed, prepare it again."
        )
