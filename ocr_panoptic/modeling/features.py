"""Checks that the backbone has the features that a config lists, and joins them for a head."""

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


def join_features(features: dict[str, Tensor], names: list[str], align_corners: bool) -> Tensor:
    """
    Join features [N, C, h, w], the finest first, to [N, sum of C, h, w] at the finest size.

    For ``align_corners`` see :func:`.resize`.
    """
    size = features[names[0]].shape[2:]
    resized = [resize(features[name], size, align_corners) for name in names]
    return resized[0] if len(resized) == 1 else torch.cat(resized, dim=1)


STAGES = ("stem", "res2", "res3", "res4", "res5")  # of Detectron2's ResNet


def check_stage_names(cfg: CfgNode) -> None:
    """Check the features that a Detectron2 ResNet outputs, and those that an FPN reads from it."""
    if "resnet" in cfg.MODEL.BACKBONE.NAME:
        given, key = cfg.MODEL.RESNETS.OUT_FEATURES, "MODEL.RESNETS.OUT_FEATURES"
        check_features(key, given, STAGES, "the network")
        if "fpn" in cfg.MODEL.BACKBONE.NAME:
            check_features("MODEL.FPN.IN_FEATURES", cfg.MODEL.FPN.IN_FEATURES, given, key)


def check_panoptic_names(cfg: CfgNode, backbone: Backbone) -> None:
    """
    Check the features that the heads of a panoptic model read.

    Detectron2's heads skip a missing feature, or fail without its name.
    """
    for head in ("SEM_SEG_HEAD", "RPN", "ROI_HEADS"):
        names = cfg.MODEL[head].IN_FEATURES
        check_features(f"MODEL.{head}.IN_FEATURES", names, backbone.output_shape())


def check_features(
    key: str, names: Sequence[str], known: Iterable[str], source: str = "the backbone"
) -> None:
    """Check that a config key lists at least one feature, and only names in ``known``."""
    unknown = [str(name) for name in names if name not in known]
    if unknown or not names:
        raise UserError(
            f"{key} is {list(names)}, and {source} has {', '.join(known)}"
            + (f": {', '.join(unknown)} is not among them." if unknown else ".")
        )
