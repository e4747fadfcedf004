"""Losses of semantic predictions. Shape shorthand: N images, K classes, H W size."""

import math

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


def hard_cross_entropy(
    logits: Tensor, targets: Tensor, ignore_value: int, threshold: float, min_kept: int
) -> Tensor:
    """
    Online hard example mining: :func:`cross_entropy` over the pixels whose probability of the true
    class is below max(threshold, the min_kept-th lowest one), as in openseg.pytorch.

    Args:
        logits, targets, ignore_value: of :func:`cross_entropy`
        threshold: probability under which a pixel is hard
        min_kept: pixels of the batch that are kept at least

    Returns:
        scalar; 0 where all pixels are ignored
    """
    loss = F.cross_entropy(logits, targets, ignore_index=ignore_value, reduction="none")
    loss = loss[targets != ignore_value]
    # The probability of the true class is exp(-loss): hard pixels are those of high loss.
    hard = -math.log(threshold)
    if 0 < min_kept < loss.numel():
        hard = min(hard, loss.detach().topk(min_kept + 1).values[-1].item())
    elif min_kept >= loss.numel():
        hard = -math.inf
    kept = loss[loss > hard]
    return kept.sum() / max(kept.numel(), 1)
