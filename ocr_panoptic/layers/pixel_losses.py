"""
The cross-entropy of each pixel, and a cross-entropy that gives rare classes more weight.

Shape shorthand: N images, K classes, h w size of the logits, H W size of the labels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .bands import compute_in_bands


def pixel_cross_entropy(
    logits: Tensor, targets: Tensor, ignore_value: int, align_corners: bool = False
) -> Tensor:
    """
    Return the cross-entropy of each pixel after resizing the logits to the size of the labels.

    Args:
        logits: [N, K, h, w]
        targets: int64 labels [N, H, W]
        ignore_value: label of the pixels whose loss is 0
        align_corners: see :func:`.resize`

    Returns:
        [N, H, W], float32 or better
    """

    def losses(full: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(full, labels, ignore_index=ignore_value, reduction="none")

    return compute_in_bands(losses, logits, targets, align_corners)


def rarity_weighted_cross_entropy(logits: Tensor, targets: Tensor, ignore_value: int) -> Tensor:
    """
    Return the mean cross-entropy, where a class weighs 1 - its share of the batch's pixels.

    SegFix's published code uses these weights. If all pixels are ignored or have the same class,
    the loss and its gradients are 0 (NaN in the published code).

    Args:
        logits: [N, K, H, W]
        targets: int64 labels [N, H, W]
        ignore_value: label of the pixels that do not count

    Returns:
        scalar, float32 or better
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    counts = torch.stack([(targets == k).sum() for k in range(logits.shape[1])])
    total = counts.sum()
    weights = 1 - counts / total.clamp(min=1).to(logits.dtype)
    losses = F.cross_entropy(
        logits, targets, weights, ignore_index=ignore_value, reduction="none"
    ).sum()
    weight = (weights * counts).sum()
    return losses / torch.where(weight > 0, weight, 1)
