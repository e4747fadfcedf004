"""Checks and joins the backbone features that a head reads."""

from collections.abc import Iterable, Sequence

import torch
from detectron2.layers import ShapeSpec
from torch import Tensor

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers.resize import resize


def count_channels(input_shape: dict[str, ShapeSpec], names: list[str]) -> int:
    return sum(input_shape[name].channels for name in names)


def finest_first(names: list[str], input_shape: dict[str, ShapeSpec]) -> list[str]:
    return sorted(names, key=lambda name: input_shape[name].stride)


def join_features(features: dict[str, Tensor], names: list[str], align_corners: bool) -> Tensor:
    """Resize the named features [N, C, h, w] to the size of the first, and join their channels."""
    size = features[names[0]].shape[2:]
    resized = [resize(features[name], size, align_corners) for name in names]
    return resized[0] if len(resized) == 1 else torch.cat(resized, dim=1)


def check_features(key: str, names: Sequence[str], known: Iterable[str]) -> None:
    """Raise UserError if a config key lists no feature, or a feature that the backbone lacks."""
    if not names or not {*names} <= {*known}:
        raise UserError(f"{key} is {list(names)}, and the backbone has {', '.join(known)}")
