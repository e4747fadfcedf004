"""The truth of an image, as the pictures show it."""

from typing import Any

import numpy as np
from detectron2.data import Metadata

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import TrueSegments
from ocr_panoptic.formats.true_labels import has_labels, read_true_labels

from .scene import PanopticMap


def semantic_truth(record: dict[str, Any], metadata: Metadata) -> np.ndarray:
    """
    Args:
        record: of a semantic or panoptic data set.
        metadata: with its label_map, if it has one.

    Returns:
        the true labels, uint8 or uint16 [H,W]

    Raises:
        ValueError: the record has no labels, or the PNG is broken or holds labels outside the map.
        FileNotFoundError: the PNG is missing.
    """
    if not has_labels(record):
        raise UserError(
            f"{record['file_name']} has no labels to show; name a data set with labels in "
            "DATASETS.TEST"
        )
    return read_true_labels(record, metadata.get("label_map"))


def panoptic_truth(truth: TrueSegments, metadata: Metadata) -> PanopticMap:
    """
    Args:
        truth: of an image of a panoptic data set.
        metadata: with the contiguous ids of its categories.
    """
    things = metadata.thing_dataset_id_to_contiguous_id
    stuff = metadata.stuff_dataset_id_to_contiguous_id
    info = []
    for segment in truth.segments:
        category = segment["category_id"]
        isthing = category in things
        contiguous = (things if isthing else stuff)[category]
        info.append({"id": segment["id"], "isthing": isthing, "category_id": contiguous})
    return PanopticMap(truth.ids, info)
