"""Features of a backbone that a head joins: resized to the finest of them and concatenated."""

import torch
from detectron2.layers import ShapeSpec
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers import resize


def check_features(input_shape: dict[str, ShapeSpec], names: list[str]) -> None:
    """
    Raises:
        ValueError: the backbone lacks one.
    """
    for name in names:
        if name not in input_shape:
            raise UserError(
                f"MODEL.SEM_SEG_HEAD names the feature {name}; the backbone has "
                f"{', '.join(input_shape)}"
            )


def count_channels(input_shape: dict[str, ShapeSpec], names: list[str]) -> int:
    return sum(input_shape[name].channels for name in names)


def finest_first(names: list[str], input_shape: dict[str, ShapeSpec]) -> list[str]:
    return sorted(names, key=lambda name: input_shape[name].stride)


def concatenated(features: dict[str, Tensor], names: list[str], align_corners: bool) -> Tensor:
    """
    Args:
        features: [N, C, h, w] each
        names: the finest first
        align_corners: see :func:`.resize`

    Returns:
        [N, sum of C, h, w], of the first one's size
    """
    size = features[names[0]].shape[2:]
    resized = [resize(features[name], size, align_corners) for name in names]
    return resized[0] if len(resized) == 1 else torch.cat(resized, dim=1)
