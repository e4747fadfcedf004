"""
The two kinds of PNGs that give an image's semantic labels: semantic PNGs and panoptic PNGs.

Both have one contract. ``picture`` is what the transforms augment: uint8, with nearest-neighbour
resizing. ``decode`` turns the augmented picture into a map, and ``labels`` turns the map into
labels. Only a panoptic PNG also has the objects: ``instances``.

Shape letters: H, W size of the image before or after augmentation; N objects.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from detectron2.data import detection_utils as utils
from detectron2.data import transforms as T
from detectron2.structures import BoxMode, Instances

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.data.image_input import check_label_size
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import id2rgb, label_of_segments, read_segment_ids, rgb2id
from ocr_panoptic.formats.labels import label_areas, look_up, pixel_counts, read_labels
from ocr_panoptic.formats.segment_runs import SegmentRuns

from .segment_masks import SegmentMasks


class SemanticPng:
    """
    The labels in a record's semantic PNG.

    Args:
        num_classes: number of semantic classes, including "things".
        ignore_value: label of the pixels that belong to no class.
        label_map: training label of each raw label; None if the PNG holds training labels.
    """

    def __init__(
        self,
        record: dict,
        num_classes: int,
        ignore_value: int,
        label_map: Mapping[int, int] | None = None,
    ):
        path = record["sem_seg_file_name"]
        self.picture = read_labels(path, label_map, kind="semantic PNG")
        check_label_size(self.picture.shape, record, path)
        known = {*range(num_classes), ignore_value}
        areas = label_areas(self.picture).items()
        if outside := [f"{k} ({area} pixels)" for k, area in areas if k not in known]:
            raise UserError(
                f"{path}: found the labels {', '.join(outside)}; expected 0..{num_classes - 1}, "
                f"or {ignore_value} for ignored pixels. MODEL.SEM_SEG_HEAD.NUM_CLASSES is "
                f"{num_classes}; it must be the number of stuff classes plus one."
            )

    def decode(self, picture: np.ndarray) -> np.ndarray:
        """Return the augmented picture, which holds the labels."""
        return picture

    def labels(self, labels: np.ndarray) -> np.ndarray:
        """Return semantic labels, unsigned integers [H, W]."""
        return labels


class PanopticPng:
    """
    The segments in a record's panoptic PNG.

    The transforms augment the index of each pixel's segment, not its id, because an index needs
    only one byte if there are at most 256 segments.
    """

    def __init__(self, record: dict):
        """Read the PNG; raise UserError if it has other segments than the record."""
        path, self._segments = record["pan_seg_file_name"], record["segments_info"]
        self._runs = runs = SegmentRuns(read_segment_ids(record))
        check_label_size(runs.size, record, path)
        listed, drawn = {s["id"] for s in self._segments}, {*runs.ids.tolist()} - {0}
        differing = drawn - listed if record.get("hides_segments") else drawn ^ listed
        if differing:
            raise UserError(
                f"{path}: the PNG and its entry in the JSON (segments_info) have different "
                f"segments; only one of them has {first_few(list(map(str, sorted(differing))))}. "
                "Was a file changed after training started?"
            )
        places = runs.places()
        self.picture = places if places.dtype == np.uint8 else id2rgb(places)

    def decode(self, picture: np.ndarray) -> np.ndarray:
        """Return the index of each pixel's segment, uint8 or uint16 [H, W]."""
        # Copy a mirrored map once; else each later step would copy it.
        places = np.ascontiguousarray(picture)
        return places if places.ndim == 2 else rgb2id(places).astype(np.uint16)

    def labels(self, places: np.ndarray) -> np.ndarray:
        """Return semantic labels, uint8 [H, W]."""
        label_of = label_of_segments(self._segments)
        table = np.array([label_of[number] for number in self._runs.ids.tolist()], np.uint8)
        return look_up(table, places)

    def crowds(self, places: np.ndarray) -> np.ndarray:
        """Return which pixels belong to crowds of things, bool [H, W]."""
        crowds = [s["id"] for s in self._segments if s["isthing"] and s.get("iscrowd")]
        return np.isin(self._runs.ids, crowds)[places]

    def instances(
        self,
        places: np.ndarray,
        annotations: Sequence[dict],
        transforms: T.TransformList,
        *,
        masks: bool,
        recompute_boxes: bool,
    ) -> Instances:
        """
        Return Detectron2's ``Instances`` of the N visible things that are not crowds.

        Args:
            places: index of each pixel's segment after augmentation, [H, W].
            annotations: dicts with segment_id, category_id and iscrowd of the things.
            transforms: the augmentation, which is applied to the boxes.
            masks: whether to add masks.
            recompute_boxes: whether boxes come from the augmented masks.
        """
        statistics = self._runs.statistics
        # Other segments may hide an object completely.
        objects = [a for a in annotations if not a["iscrowd"] and a["segment_id"] in statistics]
        boxes = [
            utils.transform_instance_annotations(
                {
                    "bbox": statistics[annotation["segment_id"]].bbox,
                    "bbox_mode": BoxMode.XYWH_ABS,
                    "category_id": annotation["category_id"],
                },
                transforms,
                places.shape,
            )
            for annotation in objects
        ]
        instances = utils.annotations_to_instances(boxes, places.shape)
        if not (masks and objects):
            return utils.filter_empty_instances(instances)
        ids = self._runs.ids
        rows = np.searchsorted(ids, [annotation["segment_id"] for annotation in objects])
        pixels = pixel_counts(places)
        pixels.resize(len(ids), refcheck=False)
        is_visible = torch.from_numpy(pixels[rows] > 0)
        if not recompute_boxes:
            is_visible &= instances.gt_boxes.nonempty()
        instances, rows = instances[is_visible], rows[is_visible.numpy()]
        # PyTorch cannot compare uint16.
        dtype = np.uint8 if places.dtype == np.uint8 else np.int32
        instances.gt_masks = SegmentMasks(
            *(torch.from_numpy(array.astype(dtype)) for array in (places, rows))
        )
        if recompute_boxes:
            instances.gt_boxes = instances.gt_masks.get_bounding_boxes()
        return instances
