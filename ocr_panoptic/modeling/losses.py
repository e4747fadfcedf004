"""Losses of semantic predictions. Shape shorthand: N images, K classes, H W size."""

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, targets: Tensor, ignore_value: int) -> Tensor:
    """
    Pixel-wise cross-entropy, averaged over the pixels that are not ignored. It is 0, and so are
    its gradients, where all are ignored (PyTorch's own mean is NaN there).

    Args:
        logits: [N, K, H, W]
        targets: int64 labels [N, H, W]
        ignore_value: label of the pixels that do not count

    Returns:
        scalar
    """
    total = F.cross_entropy(logits, targets, ignore_index=ignore_value, reduction="sum")
    return total / (targets != ignore_value).sum().clamp(min=1)
