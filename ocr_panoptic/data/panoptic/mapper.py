"""Map panoptic records to model inputs with an extended version of Detectron2's mapper."""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from detectron2.config import configurable
from detectron2.data import DatasetMapper
from detectron2.data import detection_utils as utils
from detectron2.data import transforms as T
from detectron2.layers import ROIAlign
from detectron2.structures import BitMasks, Boxes, BoxMode, Instances
from torch import Tensor

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.data.image_input import (
    ChannelInput,
    ResizedCrop,
    check_image_size,
    check_label_size,
    colours,
    mirrors,
    turns,
)
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import id2rgb, label_of_segments, read_segment_ids, rgb2id
from ocr_panoptic.formats.labels import label_areas, look_up, pixel_counts, read_label_image
from ocr_panoptic.formats.pictures import COLOURS, read_picture
from ocr_panoptic.formats.segment_runs import SegmentRuns


class PanopticDatasetMapper(DatasetMapper):
    """
    Detectron2's :class:`DatasetMapper`, extended to more kinds of files and to panoptic PNGs.

    - Images can have 8 or 16 bits and 1, 3 or 4 channels.
    - Semantic PNGs with a palette are read as palette indices.
    - If INPUT.CROP.AFTER_RESIZE is set, images are cropped after the resize instead of before it.
    - If a record lacks sem_seg_file_name, semantic labels come from the panoptic PNG.
    - If an annotation has a segment_id, its mask and box come from the panoptic PNG.
    """

    @configurable
    def __init__(
        self,
        is_train: bool,
        *,
        num_sem_seg_classes: int,  # including "things"
        ignore_value: int = 255,
        channels: int = COLOURS,
        **kwargs,
    ):
        super().__init__(is_train, **kwargs)
        self.num_sem_seg_classes = num_sem_seg_classes
        self.ignore_value = ignore_value
        self.channels = channels

    @classmethod
    def from_config(cls, cfg, is_train: bool = True) -> dict:
        plain = cfg.clone()
        plain.defrost()
        plain.INPUT.RANDOM_FLIP = "none"
        arguments = super().from_config(plain, is_train)
        if is_train:
            augmentations = arguments["augmentations"]
            if cfg.INPUT.CROP.ENABLED and cfg.INPUT.CROP.AFTER_RESIZE:
                crop, resize = augmentations
                augmentations = [ResizedCrop(resize, crop)]
            inputs = cfg.INPUT
            augmentations = [*turns(inputs), *augmentations, *mirrors(inputs), *colours(inputs)]
            arguments["augmentations"] = augmentations
        return {
            **arguments,
            "num_sem_seg_classes": cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES,
            "ignore_value": cfg.MODEL.SEM_SEG_HEAD.IGNORE_VALUE,
            "channels": cfg.INPUT.get("CHANNELS", COLOURS),  # Detectron2's own config lacks the key
        }

    def __call__(self, dataset_dict: dict) -> dict:
        record = {**dataset_dict}
        annotations = record.get("annotations")
        if annotations and "segment_id" not in annotations[0]:
            # Detectron2 modifies annotations. Pickling takes a tenth of the time of deepcopy.
            record["annotations"] = pickle.loads(pickle.dumps(annotations))
        image = read_picture(record["file_name"], self.image_format, self.channels)
        check_image_size(record, image)
        path = record.pop("sem_seg_file_name", None)
        labels = runs = shown = None
        if path:
            shown = labels = read_label_image(path, kind="semantic PNG")
            check_label_size(labels.shape, record, path)
            self._check_labels(path, labels)
        elif "pan_seg_file_name" in record:
            runs = self._segments(record)
            shown = runs.places()  # transforms resize with Pillow, which needs uint8
            shown = shown if shown.dtype == np.uint8 else id2rgb(shown)
        inputs = ChannelInput(image, sem_seg=shown)
        transforms = self.augmentations(inputs)
        size = inputs.image.shape[:2]
        record["image"] = torch.as_tensor(np.ascontiguousarray(inputs.image.transpose(2, 0, 1)))
        if labels is not None:
            record["sem_seg"] = torch.as_tensor(inputs.sem_seg.astype(np.int64))
        if runs is not None:
            # Copy a mirrored map once; else each later step would copy it.
            places = np.ascontiguousarray(inputs.sem_seg)
            places = places if places.ndim == 2 else rgb2id(places).astype(np.uint16)
            label_of = label_of_segments(record["segments_info"])
            table = np.array([label_of[number] for number in runs.ids.tolist()], np.uint8)
            record["sem_seg"] = torch.as_tensor(look_up(table, places).astype(np.int64))
        annotations = record.get("annotations")
        if not self.is_train:
            record.pop("annotations", None)
        elif annotations == []:  # Detectron2's crops fail on an empty list
            record["instances"] = utils.annotations_to_instances(record.pop("annotations"), size)
        elif runs is not None and annotations and "segment_id" in annotations[0]:
            own = record.pop("annotations")
            record["instances"] = self._instances(runs, own, transforms, places)
        elif annotations is not None:
            self._transform_annotations(record, transforms, size)
        return record

    def _segments(self, record: dict) -> SegmentRuns:
        """Return the segments in a record's PNG; raise UserError if PNG and record disagree."""
        path = record["pan_seg_file_name"]
        runs = SegmentRuns(read_segment_ids(record))
        check_label_size(runs.size, record, path)
        listed, shown = {s["id"] for s in record["segments_info"]}, {*runs.ids.tolist()} - {0}
        differing = shown - listed if record.get("hides_segments") else shown ^ listed
        if differing:
            raise UserError(
                f"{path}: segments are only in it or only in the JSON's segments_info: "
                f"{first_few(list(map(str, sorted(differing))))}. Has it changed since the start "
                "of the training?"
            )
        return runs

    def _instances(
        self,
        runs: SegmentRuns,
        annotations: list[dict],
        transforms: T.TransformList,
        places: np.ndarray,
    ) -> Instances:
        """
        Return Detectron2's ``Instances`` of the visible things that are not crowds.

        Args:
            places: [H, W], index of each pixel's segment in ``runs.ids``, after augmentation.
        """
        objects = [
            annotation
            for annotation in annotations
            if not annotation["iscrowd"]
            and annotation["segment_id"] in runs.statistics  # other segments may hide it completely
        ]
        boxes = [
            utils.transform_instance_annotations(
                {
                    "bbox": runs.statistics[annotation["segment_id"]].bbox,
                    "bbox_mode": BoxMode.XYWH_ABS,
                    "category_id": annotation["category_id"],
                },
                transforms,
                places.shape,
            )
            for annotation in objects
        ]
        instances = utils.annotations_to_instances(boxes, places.shape)
        if not (self.use_instance_mask and objects):
            return utils.filter_empty_instances(instances)
        own = np.searchsorted(runs.ids, [annotation["segment_id"] for annotation in objects])
        pixels = pixel_counts(places)
        pixels.resize(len(runs.ids), refcheck=False)
        is_shown = torch.from_numpy(pixels[own] > 0)
        if not self.recompute_boxes:
            is_shown &= instances.gt_boxes.nonempty()
        instances, own = instances[is_shown], own[is_shown.numpy()]
        # PyTorch cannot compare uint16.
        dtype = np.uint8 if places.dtype == np.uint8 else np.int32
        shown, segments = (torch.from_numpy(a.astype(dtype)) for a in (places, own))
        instances.gt_masks = SegmentMasks(shown, segments)
        if self.recompute_boxes:
            instances.gt_boxes = instances.gt_masks.get_bounding_boxes()
        return instances

    def _check_labels(self, path: str, labels: np.ndarray) -> None:
        known = {*range(self.num_sem_seg_classes), self.ignore_value}
        if outside := [(k, area) for k, area in label_areas(labels).items() if k not in known]:
            raise UserError(
                f"{path}: labels outside 0..{self.num_sem_seg_classes - 1} and "
                f"{self.ignore_value}: {', '.join(f'{k} ({area} pixels)' for k, area in outside)}. "
                f"MODEL.SEM_SEG_HEAD.NUM_CLASSES is {self.num_sem_seg_classes}; it must be the "
                "number of stuff classes plus one."
            )


class SegmentMasks(BitMasks):
    """
    A faster replacement for Detectron2's ``BitMasks`` if no two segments share a pixel.

    One map of segment indices, not a mask per object, is sent between processes and to the GPU.

    Attributes:
        places: uint8 or int32 [H, W], index of each pixel's segment.
        segments: indices of the M segments that are objects, [M] in the dtype of ``places``.
        rows: for each of the N masks, the position of its segment in ``segments``, int64 [N].
    """

    def __init__(self, places: Tensor, segments: Tensor, rows: Tensor | None = None):
        self.image_size = places.shape
        self.places = places
        self.segments = segments
        self.rows = torch.arange(len(segments), device=places.device) if rows is None else rows

    @property
    def tensor(self) -> Tensor:
        """The masks, bool [N, H, W]."""
        return self.places == self.segments[self.rows][:, None, None]

    def to(self, device: torch.device | str, **kwargs: Any) -> "SegmentMasks":
        parts = (self.places, self.segments, self.rows)
        return SegmentMasks(*(part.to(device=device, **kwargs) for part in parts))

    @staticmethod
    def cat(masks: Sequence[BitMasks]) -> BitMasks:
        return BitMasks.cat([BitMasks(mask.tensor) for mask in masks])

    def get_bounding_boxes(self) -> Boxes:
        return BitMasks(self.tensor).get_bounding_boxes()

    def __getitem__(self, item: int | slice | Tensor) -> "SegmentMasks":
        return SegmentMasks(self.places, self.segments, self.rows[item].reshape(-1))

    def __len__(self) -> int:
        return len(self.rows)

    def crop_and_resize(self, boxes: Tensor, mask_size: int) -> Tensor:
        """Return each mask, cropped to its box and resized, bool [N, mask_size, mask_size]."""
        assert len(boxes) == len(self), f"{len(boxes)} boxes, {len(self)} masks"
        segments, rows = self.segments, self.rows
        if len(rows) < len(segments):
            segments, rows = segments[rows], torch.arange(len(rows), device=rows.device)
        masks = (self.places == segments[:, None, None]).float()[:, None]
        rois = torch.cat([rows[:, None].to(boxes), boxes], dim=1)
        align = ROIAlign((mask_size, mask_size), 1.0, 0, aligned=True)
        return align(masks, rois.to(masks.device)).squeeze(1) >= 0.5
