"""Mapper of SegFix: a record of a semantic or panoptic data set becomes what the network takes."""

import numpy as np
import torch
from detectron2.config import CfgNode, configurable
from detectron2.data import MetadataCatalog
from fvcore.transforms.transform import Transform

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.semantic.augmentation import (
    build_offset_augmentation,
    build_semantic_augmentation,
)
from ocr_panoptic.data.semantic.mapper import SemanticDatasetMapper
from ocr_panoptic.formats.labels import has_labels
from ocr_panoptic.segfix.truth import read_segment_map, true_offset_labels


class OffsetDatasetMapper(SemanticDatasetMapper):
    """
    Image and offset labels (:mod:`.offsets`) of a record, made of the classes or
    segments that it names. Data sets with other classes can be trained on together.
    """

    read_labels = staticmethod(read_segment_map)

    @configurable
    def __init__(self, is_train: bool, *, boundary_distance: int, **kwargs):
        """
        Args:
            boundary_distance: see :func:`.true_offset_labels`.
            kwargs: of :class:`SemanticDatasetMapper`.
        """
        super().__init__(is_train, **kwargs)
        self.boundary_distance = boundary_distance

    @classmethod
    def from_config(cls, cfg: CfgNode, is_train: bool = True) -> dict:
        names = (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST)
        maps = {name: MetadataCatalog.get(name).get("label_map") for name in names}
        distance = cfg.MODEL.SEGFIX.BOUNDARY_DISTANCE
        return {
            "is_train": is_train,
            "augmentations": (
                build_offset_augmentation(cfg, OffsetTruth(distance))
                if is_train
                else build_semantic_augmentation(cfg, is_train=False)
            ),
            "image_format": cfg.INPUT.FORMAT,
            "channels": cfg.INPUT.CHANNELS,
            "num_classes": VOID_LABEL,  # any
            "label_maps": {name: found for name, found in maps.items() if found},
            "boundary_distance": distance,
        }

    def __call__(self, dataset_dict: dict) -> dict:
        """
        Args:
            dataset_dict: see :func:`.read_segment_map`.

        Returns:
            the record as :class:`SemanticDatasetMapper` gives it, with "sem_seg" the offset labels,
            int64 [H, W]: in training of the augmented image, else, where there are labels, of the
            file's.

        Raises:
            FileNotFoundError, ValueError: as there.
        """
        record = super().__call__(dataset_dict)
        if not self.is_train and has_labels(dataset_dict):
            truth = true_offset_labels(
                self._labels({**dataset_dict, **record}), self.boundary_distance
            )
            record["sem_seg"] = torch.as_tensor(truth.astype(np.int64))
        return record


class OffsetTruth(Transform):
    """Offset labels in the place of a segment map; images stay."""

    def __init__(self, boundary_distance: int):
        super().__init__()
        self.boundary_distance = boundary_distance

    def apply_image(self, img: np.ndarray) -> np.ndarray:
        return img

    def apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return coords

    def apply_segmentation(self, segmentation: np.ndarray) -> np.ndarray:
        """uint8 [H, W] to uint8 [H, W], see :func:`.true_offset_labels`."""
        return true_offset_labels(segmentation, self.boundary_distance)
