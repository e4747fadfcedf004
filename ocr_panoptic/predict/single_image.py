"""Prepare single images for a trained model, and find the names of the model's classes."""

from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import Metadata, MetadataCatalog

from ocr_panoptic.data.image_input import ChannelInput
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.pictures import TooThin, reordered, thin_fault

from .task import refiner_configs, task_of


def class_metadata(cfg: CfgNode) -> Metadata:
    """Return the metadata of DATASETS.TEST[0], with the names and colours of the classes."""
    if not task_of(cfg).has_classes:
        raise UserError(
            "SegFix predicts offsets, not classes. Name its weights in TEST.SEGFIX.WEIGHTS of "
            "another model's config, or apply it with ocr-panoptic refine."
        )
    if not cfg.DATASETS.TEST:
        raise UserError("DATASETS.TEST is empty. Set it to a data set with the model's classes.")
    return MetadataCatalog.get(cfg.DATASETS.TEST[0])


def model_input(cfg: CfgNode, image: np.ndarray) -> dict[str, Any]:
    """
    Resize an image as at test time, and return the model's input.

    If the config names a refiner, an entry with its name, such as "segfix", is the refiner's input.

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
    for name, own in refiner_configs(cfg).items():
        same_order = own.INPUT.FORMAT == cfg.INPUT.FORMAT
        found[name] = model_input(own, image if same_order else reordered(image, "BGR"))
    return found
