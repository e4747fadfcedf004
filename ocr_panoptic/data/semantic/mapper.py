"""Map records of a semantic data set to model inputs."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from detectron2.config import CfgNode, configurable
from detectron2.data import Metadata, MetadataCatalog
from detectron2.data import transforms as T

from ocr_panoptic.data.catalog import label_maps_of
from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.image_input import ChannelInput, check_image_size, check_label_size
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.labels import has_labels, read_true_labels
from ocr_panoptic.formats.pictures import COLOURS, read_picture

from .augmentation import build_semantic_augmentation


class SemanticDatasetMapper:
    """
    A mapper from a record to a model's input: the augmented image and the training labels.

    Unlike Detectron2's mapper, it reads palette indices and 16-bit labels as stored, and applies
    the label map of the record's data set. If the data set has no label map, labels must be
    0..num_classes-1 or 255.

    Args:
        label_maps: dict from the name of a data set to its label map, which gives the training
            label (or 255) of each raw label.
        keep_labels: whether to return labels also at test time, for models that need them.
        read_labels: function that gets a record and a label map, and returns uint8 labels [H, W].
        truth_of_file: function that computes "sem_seg" at test time from a record's labels in
            their original size.
    """

    @configurable
    def __init__(
        self,
        is_train: bool,
        *,
        augmentations: Sequence[T.Augmentation],
        image_format: str,
        channels: int = COLOURS,
        num_classes: int,
        label_maps: Mapping[str, Mapping[int, int]],
        keep_labels: bool = False,
        read_labels: Callable[[dict, Mapping[int, int]], np.ndarray] = read_true_labels,
        truth_of_file: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        self.is_train = is_train
        self.augmentations = T.AugmentationList(augmentations)
        self.image_format = image_format
        self.channels = channels
        self.label_maps = label_maps
        self.identity = {label: label for label in (*range(num_classes), VOID_LABEL)}
        self.with_labels = is_train or keep_labels
        self.read_labels = read_labels
        self.truth_of_file = truth_of_file

    @classmethod
    def from_config(cls, cfg: CfgNode, is_train: bool = True) -> dict:
        train = [MetadataCatalog.get(name) for name in cfg.DATASETS.TRAIN]
        return {
            "is_train": is_train,
            "augmentations": build_semantic_augmentation(cfg, is_train, _flip_pairs(train)),
            "image_format": cfg.INPUT.FORMAT,
            "channels": cfg.INPUT.CHANNELS,
            "num_classes": cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES,
            "label_maps": label_maps_of([*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST]),
        }

    def __call__(self, dataset_dict: dict) -> dict:
        """
        Return the model's input for a record with file_name and dataset_name.

        Returns:
            copy of the record with these keys:

            - "image": uint8 [C, H, W]; float32 if it is padded or was read as float32.
            - "height" and "width": size of the image before augmentation.
            - "sem_seg": int64 [H, W]; at test time, only if ``keep_labels`` or ``truth_of_file``.
        """
        record = {**dataset_dict}
        image = read_picture(record["file_name"], self.image_format, self.channels)
        check_image_size(record, image)
        if self.with_labels and not has_labels(record):
            purpose = "training" if self.is_train else "a context scheme that needs labels"
            raise UserError(
                f"{record['file_name']}: this image has no label file (sem_seg_file_name), so it "
                f"cannot be used for {purpose}. Is its split without labels?"
            )
        labels = self._labels(record) if self.with_labels else None
        if self.truth_of_file and not self.is_train and has_labels(record):
            truth = self.truth_of_file(self._labels(record))
            record["sem_seg"] = torch.as_tensor(truth.astype(np.int64))
        record.pop("sem_seg_file_name", None)
        inputs = ChannelInput(image, sem_seg=labels)
        self.augmentations(inputs)
        record["image"] = torch.as_tensor(np.ascontiguousarray(inputs.image.transpose(2, 0, 1)))
        if labels is not None:
            record["sem_seg"] = torch.as_tensor(inputs.sem_seg.astype(np.int64))
        return record

    def _labels(self, record: dict) -> np.ndarray:
        label_map = self.label_maps.get(record.get("dataset_name", ""), self.identity)
        labels = self.read_labels(record, label_map)
        check_label_size(labels.shape, record)
        return labels


def _flip_pairs(train: Sequence[Metadata]) -> list[tuple[int, int]]:
    for other in train[1:]:
        for key in ("stuff_classes", "flip_pairs"):
            values = [metadata.get(key) or [] for metadata in (train[0], other)]
            if values[0] != values[1]:
                raise UserError(
                    f"DATASETS.TRAIN contains {train[0].name} and {other.name}, but their {key} "
                    f"differ: {values[0]} and {values[1]}. Train on data that agree in both keys."
                )
    return train[0].get("flip_pairs") or [] if train else []
