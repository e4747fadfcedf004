"""Resizing of feature maps, logits, images and labels, by one convention."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def resize(x: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """
    Return x [N, C, h, w] resized bilinearly to ``size``, without antialiasing.

    If ``align_corners`` is True, the centres of the corner pixels are aligned, otherwise their
    outer corners. If x has this size already, x itself is returned.
    """
    if tuple(x.shape[2:]) == tuple(size):
        return x
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=align_corners)


def one_hot_labels(
    labels: Tensor, num_classes: int, ignore_value: int, size: Sequence[int]
) -> Tensor:
    """
    Return one-hot labels, float32 [N, K, h, w], at another size.

    Args:
        labels: integers [N, H, W] in 0..num_classes - 1 or ``ignore_value``
        ignore_value: label of the pixels that belong to no class, where the result is 0
        size: size (h, w) of the result, in which each pixel copies the nearest pixel of ``labels``
    """
    rows, columns = (
        ((torch.arange(n, device=labels.device) + 0.5) * (full / n)).long()
        for n, full in zip(size, labels.shape[1:])
    )
    labels = labels[:, rows[:, None], columns]
    classes = torch.arange(num_classes, device=labels.device)[:, None, None]
    return ((labels[:, None] == classes) & (labels[:, None] != ignore_value)).float()
