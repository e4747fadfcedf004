"""Resizing of feature maps, logits, images and labels."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def resize(x: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """
    Return x [N, C, h, w] resized bilinearly to ``size``, without antialiasing.

    If ``align_corners`` is True, the centres of the corner pixels are aligned, otherwise their
    outer corners. If x already has this size, x itself is returned.
    """
    if tuple(x.shape[2:]) == tuple(size):
        return x
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=align_corners)


def one_hot_labels(
    labels: Tensor, num_classes: int, ignore_value: int, size: Sequence[int]
) -> Tensor:
    """
    Return labels, resized to ``size`` and one-hot encoded, as float32 [N, K, h, w].

    Args:
        labels: integers [N, H, W] in 0..num_classes - 1, or ``ignore_value``
        num_classes: number of classes, K
        ignore_value: label of pixels that belong to no class; the result is 0 at these pixels
        size: size (h, w) of the result; each pixel copies the nearest pixel of ``labels``
    """
    rows, columns = (
        ((torch.arange(n, device=labels.device) + 0.5) * (full / n)).long()
        for n, full in zip(size, labels.shape[1:])
    )
    labels = labels[:, rows[:, None], columns]
    classes = torch.arange(num_classes, device=labels.device)[:, None, None]
    return ((labels[:, None] == classes) & (labels[:, None] != ignore_value)).float()
