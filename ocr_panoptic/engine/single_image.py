"""A trained model on single images that belong to no data set."""

from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.data import Metadata, MetadataCatalog
from detectron2.data import transforms as T
from torch import nn

from .segfix_config import segfix_config
from .task import task_of


def class_metadata(cfg: CfgNode) -> Metadata:
    """
    Returns:
        the names and colours of the classes, of DATASETS.TEST[0].

    Raises:
        ValueError: DATASETS.TEST is empty, or has no semantic classes; or the model predicts none.
    """
    if cfg.MODEL.META_ARCHITECTURE == "SegFix":
        raise ValueError(
            "SegFix predicts no classes. Name it in TEST.SEGFIX.WEIGHTS of another model's config, "
            "or apply it with tools/refine.py."
        )
    if not cfg.DATASETS.TEST:
        raise ValueError("DATASETS.TEST is empty; its first data set gives the classes' names")
    metadata = MetadataCatalog.get(cfg.DATASETS.TEST[0])
    if not hasattr(metadata, "stuff_classes"):
        raise ValueError(
            f"DATASETS.TEST[0] = {cfg.DATASETS.TEST[0]} has no stuff_classes; name a panoptic or "
            "semantic data set that is registered"
        )
    return metadata


def model_input(cfg: CfgNode, image: np.ndarray) -> dict[str, Any]:
    """
    Args:
        image: uint8 [H,W,3] in the channel order INPUT.FORMAT.

    Returns:
        the model's input for this image, resized as the config says for tests; with "segfix", that
        of SegFix, where TEST.SEGFIX.WEIGHTS names one.
    """
    inputs = T.AugInput(image)
    task_of(cfg).test_augmentation(cfg)(inputs)
    tensor = torch.as_tensor(np.ascontiguousarray(inputs.image.transpose(2, 0, 1)))
    found = {"image": tensor, "height": image.shape[0], "width": image.shape[1]}
    if segfix := segfix_config(cfg):
        same_order = segfix.INPUT.FORMAT == cfg.INPUT.FORMAT
        found["segfix"] = model_input(segfix, image if same_order else image[:, :, ::-1])
    return found


def predict(cfg: CfgNode, model: nn.Module, image: np.ndarray) -> dict[str, Any]:
    """
    Args:
        model: in evaluation mode.
        image: uint8 [H,W,3] BGR.

    Returns:
        the model's output for this image, see Detectron2's ``PanopticFPN.forward`` and
        ``OCRSemanticSegmentor.forward``; refined, if the model is of :func:`.refined_by_segfix`.
    """
    if cfg.INPUT.FORMAT == "RGB":
        image = image[:, :, ::-1]
    with torch.inference_mode():
        return model([model_input(cfg, image)])[0]
