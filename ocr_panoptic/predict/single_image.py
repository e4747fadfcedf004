"""Prepare single images for a trained model, and find the names of the model's classes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import Metadata, MetadataCatalog

from ocr_panoptic.data.image_input import ChannelInput
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.pictures import TooThin, read_picture, reordered, thin_fault

from .segfix import segfix_config
from .task import task_of


def class_metadata(cfg: CfgNode) -> Metadata:
    """Return the metadata of DATASETS.TEST[0], with the names and colours of the classes."""
    if not task_of(cfg).has_classes:
        raise UserError(
            "SegFix predicts offsets, not classes. Name its weights in TEST.SEGFIX.WEIGHTS of "
            "another model's config, or apply it with ocr-panoptic refine."
        )
    if not cfg.DATASETS.TEST:
        raise UserError("DATASETS.TEST is empty. Name a data set there for the class names.")
    return MetadataCatalog.get(cfg.DATASETS.TEST[0])


def model_input(cfg: CfgNode, image: np.ndarray) -> dict[str, Any]:
    """
    Resize an image as at test time, and return the model's input.

    If TEST.SEGFIX.WEIGHTS names a SegFix model, the entry "segfix" is the SegFix model's input.

    Args:
        image: image [H,W,C] in the channel order INPUT.FORMAT, e.g. from :func:`.read_picture`.

    Raises:
        TooThin: a side of the image would be scaled to 0 pixels.
    """
    height, width = image.shape[:2]
    longest = cfg.INPUT.MAX_SIZE_TEST
    is_scaled = cfg.INPUT.MIN_SIZE_TEST and not cfg.INPUT.FIXED_SIZE
    if is_scaled and (fault := thin_fault(height, width, longest, "INPUT.MAX_SIZE_TEST")):
        raise TooThin(fault)
    inputs = ChannelInput(image)
    task_of(cfg).test_augmentation(cfg)(inputs)
    tensor = torch.as_tensor(np.ascontiguousarray(inputs.image.transpose(2, 0, 1)))
    found = {"image": tensor, "height": height, "width": width}
    if segfix := segfix_config(cfg):
        same_order = segfix.INPUT.FORMAT == cfg.INPUT.FORMAT
        found["segfix"] = model_input(segfix, image if same_order else reordered(image, "BGR"))
    return found


def with_segfix_input(mapper: Callable[[dict], dict], segfix_cfg: CfgNode, record: dict) -> dict:
    """Return the mapper's output for a record, with the SegFix model's input as entry "segfix"."""
    inputs = segfix_cfg.INPUT
    image = read_picture(record["file_name"], inputs.FORMAT, inputs.CHANNELS)
    return {**mapper(record), "segfix": model_input(segfix_cfg, image)}
