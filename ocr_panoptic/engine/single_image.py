"""Use of a trained model on single images without a data set."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import Metadata, MetadataCatalog
from torch import nn

from ocr_panoptic.data.image_input import ChannelInput
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.pictures import TooThin, read_picture, reordered, thin_fault
from ocr_panoptic.modeling.inference_output import InferenceOutput

from .segfix import segfix_config
from .task import task_of


def class_metadata(cfg: CfgNode) -> Metadata:
    """Return the metadata of DATASETS.TEST[0], with names and colours of the classes."""
    if cfg.MODEL.META_ARCHITECTURE == "SegFix":
        raise UserError(
            "SegFix predicts no classes. Name it in TEST.SEGFIX.WEIGHTS of another model's config, "
            "or apply it with ocr-panoptic refine."
        )
    if not cfg.DATASETS.TEST:
        raise UserError("DATASETS.TEST is empty; its first data set gives the classes' names")
    metadata = MetadataCatalog.get(cfg.DATASETS.TEST[0])
    if not hasattr(metadata, "stuff_classes"):
        raise UserError(
            f"DATASETS.TEST[0] = {cfg.DATASETS.TEST[0]} has no stuff_classes; name a panoptic or "
            "semantic data set that is registered"
        )
    return metadata


def model_input(cfg: CfgNode, image: np.ndarray) -> dict[str, Any]:
    """
    Return the model's input for an image, resized as at test time.

    If TEST.SEGFIX.WEIGHTS names a SegFix, "segfix" is the SegFix's input.

    Args:
        image: image [H,W,C] in the channel order INPUT.FORMAT, e.g. from :func:`.read_picture`.

    Raises:
        TooThin: a side of the image would be scaled to 0 pixels.
    """
    if image.shape[2] != cfg.INPUT.CHANNELS:
        raise UserError(
            f"The image has {image.shape[2]} channels, but INPUT.CHANNELS is {cfg.INPUT.CHANNELS}: "
            "the model was trained on images of another kind."
        )
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


def predict(cfg: CfgNode, model: nn.Module, image: np.ndarray) -> InferenceOutput:
    """
    Return a model's output for an image.

    Args:
        model: an :class:`.InferenceModel` or a :class:`.RefinedModel`.
        image: image [H,W,C], in BGR if it has colours.
    """
    if cfg.INPUT.FORMAT == "RGB":
        image = reordered(image, "BGR")
    with torch.inference_mode():
        return model([model_input(cfg, image)])[0]


class SegFixMapper:
    """A test-time mapper that adds SegFix's input to the model's input, as "segfix"."""

    def __init__(self, mapper: Callable[[dict], dict], segfix_cfg: CfgNode):
        self._mapper, self._cfg = mapper, segfix_cfg

    def __call__(self, dataset_dict: dict) -> dict:
        record = self._mapper(dataset_dict)
        inputs = self._cfg.INPUT
        image = read_picture(dataset_dict["file_name"], inputs.FORMAT, inputs.CHANNELS)
        return {**record, "segfix": model_input(self._cfg, image)}
