"""Losses of semantic predictions. Shape shorthand: N images, K classes, H W size."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(
    logits: Tensor, targets: Tensor, ignore_value: int, class_weights: Tensor | None = None
) -> Tensor:
    """
    Pixel-wise cross-entropy, averaged over the pixels that are not ignored. It is 0, and so are
    its gradients, where all are ignored (PyTorch's own mean is NaN there).

    Args:
        logits: [N, K, H, W]
        targets: int64 labels [N, H, W]
        ignore_value: label of the pixels that do not count
        class_weights: [K], of the average over pixels; None for equal weights

    Returns:
        scalar
    """
    total = F.cross_entropy(
        logits, targets, class_weights, ignore_index=ignore_value, reduction="sum"
    )
    valid = targets != ignore_value
    weight = valid.sum() if class_weights is None else class_weights[targets[valid]].sum()
    return total / torch.where(weight > 0, weight, 1)


def hard_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    ignore_value: int,
    threshold: float,
    min_kept: int,
    class_weights: Tensor | None = None,
) -> Tensor:
    """
    Online hard example mining: the cross-entropy of the pixels whose probability of the true class
    is below max(threshold, the min_kept-th lowest one), as in the published code. As there, class
    weights multiply the losses of the kept pixels, whose plain mean is taken.

    Args:
        logits, targets, ignore_value, class_weights: of :func:`cross_entropy`
        threshold: probability under which a pixel is hard, in (0, 1]
        min_kept: pixels of the batch that are kept at least, though never more than there are

    Returns:
        scalar; 0 where all pixels are ignored

    Raises:
        ValueError: if threshold is no probability.
    """
    if not 0 < threshold <= 1:
        raise ValueError(
            f"MODEL.SEM_SEG_HEAD.OHEM_THRESHOLD is {threshold}; expected a probability in (0, 1]"
        )
    valid = targets != ignore_value
    # Ignored pixels have loss 0 and drop out by the mask.
    loss = F.cross_entropy(logits, targets, ignore_index=ignore_value, reduction="none")[valid]
    # The probability of the true class is exp(-loss): hard pixels are those of high loss.
    hard = -math.log(threshold)
    if 0 < min_kept < loss.numel():
        hard = min(hard, loss.detach().topk(min_kept + 1).values[-1].item())
    elif min_kept >= loss.numel():
        hard = -math.inf
    kept = loss > hard
    if class_weights is not None:
        loss = loss * class_weights[targets[valid]]
    return loss[kept].sum() / max(int(kept.sum()), 1)
