"""
Cross-entropy with weights that make rare classes count more.

Shape shorthand: N images, K classes, H W size of the labels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def rarity_weighted_cross_entropy(logits: Tensor, targets: Tensor, ignore_value: int) -> Tensor:
    """
    The mean cross-entropy in which a class has the weight 1 - its share of the batch's pixels, as
    SegFix's published code has it. It is 0, and so are its gradients, where all pixels are ignored
    or of one class (the published code's is NaN there).

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
