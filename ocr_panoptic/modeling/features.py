"""Features of a backbone: those that a config lists are there, and a head joins them."""

from collections.abc import Iterable, Sequence

import torch
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import Backbone
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers.resize import resize


def count_channels(input_shape: dict[str, ShapeSpec], names: list[str]) -> int:
    return sum(input_shape[name].channels for name in names)


def finest_first(names: list[str], input_shape: dict[str, ShapeSpec]) -> list[str]:
    return sorted(names, key=lambda name: input_shape[name].stride)


def concatenated(features: dict[str, Tensor], names: list[str], align_corners: bool) -> Tensor:
    """
    Join features [N, C, h, w], the finest first, to [N, sum of C, h, w] of the first one's size;
    for ``align_corners`` see :func:`.resize`.
    """
    size = features[names[0]].shape[2:]
    resized = [resize(features[name], size, align_corners) for name in names]
    return resized[0] if len(resized) == 1 else torch.cat(resized, dim=1)


STAGES = ("stem", "res2", "res3", "res4", "res5")  # of Detectron2's ResNet


def check_stage_names(cfg: CfgNode) -> None:
    """Check what a ResNet of Detectron2 is to give, and what an FPN reads of it."""
    if "resnet" in cfg.MODEL.BACKBONE.NAME:
        given, key = cfg.MODEL.RESNETS.OUT_FEATURES, "MODEL.RESNETS.OUT_FEATURES"
        check_features(key, given, STAGES, "the network")
        if "fpn" in cfg.MODEL.BACKBONE.NAME:
            check_features("MODEL.FPN.IN_FEATURES", cfg.MODEL.FPN.IN_FEATURES, given, key)


def check_panoptic_names(cfg: CfgNode, backbone: Backbone) -> None:
    """
    Check what the heads of a panoptic model read. Detectron2's leave out what there is not, or fail
    without its name.
    """
    for head in ("SEM_SEG_HEAD", "RPN", "ROI_HEADS"):
        names = cfg.MODEL[head].IN_FEATURES
        check_features(f"MODEL.{head}.IN_FEATURES", names, backbone.output_shape())


def check_features(
    key: str, names: Sequence[str], known: Iterable[str], source: str = "the backbone"
) -> None:
    """
    Check that a key of the config lists features, and only such as ``source`` has (``known``).
    """
    unknown = [str(name) for name in names if name not in known]
    if unknown or not names:
        raise UserError(
            f"{key} is {list(names)}, and {source} has {', '.join(known)}"
            + (f": {', '.join(unknown)} is not among them." if unknown else ".")
        )
