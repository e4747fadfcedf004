"""Sizes of images: whether an image and its labels have the one that the record says, and can be
scaled."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ocr_panoptic.errors import UserError


def longest_ratio(inputs: Mapping[str, Any], split: str) -> float:
    """Return how many times a side of an image may be the other one: ``ResizeShortestEdge`` rounds
    less than half a pixel to none.

    Args:
        inputs: INPUT of a config.
        split: of the keys MIN_SIZE_ and MAX_SIZE_, "TRAIN" or "TEST".
    """
    sizes = inputs[f"MIN_SIZE_{split}"]
    is_scaled = any(sizes) if isinstance(sizes, Sequence) else sizes > 0
    if not is_scaled or inputs.get("FIXED_SIZE"):
        return math.inf
    return 2 * inputs[f"MAX_SIZE_{split}"]


def thin_fault(height: int, width: int, inputs: Mapping[str, Any], split: str) -> str | None:
    """Return the fault of an image whose sides differ more than :func:`longest_ratio`, or None."""
    if max(height, width) <= longest_ratio(inputs, split) * min(height, width):
        return None
    return (
        f"the image of {width}x{height} pixels (width x height) is too thin: where its long side "
        f"has the {inputs[f'MAX_SIZE_{split}']} pixels of INPUT.MAX_SIZE_{split}, the other has "
        "less than one. Crop it, or leave it out"
    )


def check_image_size(record: dict, image: np.ndarray) -> None:
    """Detectron2's check; where the record has no height and width it gets them.

    Args:
        image: [H, W, C].

    Raises:
        ValueError: the image has another size.
    """
    from detectron2.data import detection_utils as utils

    try:
        utils.check_image_size(record, image)
    except utils.SizeMismatchError as error:
        raise UserError(
            f"{record['file_name']}: the image has {image.shape[1]}x{image.shape[0]} pixels, "
            f"expected {record['width']}x{record['height']} (width x height). Has it "
            "changed since the data were checked?"
        ) from error


def check_label_size(size: tuple[int, int], record: dict, path: str | None = None) -> None:
    """
    Args:
        size: H, W of the labels of a PNG.
        path: of that PNG; by default the record names it.

    Raises:
        ValueError: the record's image has another size.
    """
    if size != (record["height"], record["width"]):
        path = path or record.get("sem_seg_file_name") or record["pan_seg_file_name"]
        raise UserError(
            f"{path}: the PNG has {size[1]}x{size[0]} pixels, the image {record['file_name']} "
            f"{record['width']}x{record['height']} (width x height). They must be equal."
        )
