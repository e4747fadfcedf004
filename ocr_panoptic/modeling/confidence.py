"""The probability of the labels that are chosen. Shape letters: those of :mod:`.inference`."""

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def confident_argmax(scores: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """argmax over classes that come one after the other, and the softmax at it.

    Args:
        scores: logits per class, float32 [N,H,W].

    Returns:
        int64 [N,H,W], the first class of equal scores, and float32 [N,H,W] in 1/K..1.

    Raises:
        FloatingPointError: a pixel has no highest score: one is NaN, or two are infinite.
    """
    classes = iter(scores)
    highest = next(classes).clone()
    labels = torch.zeros_like(highest, dtype=torch.int64)
    total = torch.ones_like(highest)  # sum of exp(score - highest)
    for k, class_scores in enumerate(classes, start=1):
        # One of the two exponentials of a running softmax is always exp(0).
        ratio = (class_scores - highest).abs_().neg_().exp_()
        higher = class_scores > highest
        total = torch.where(higher, total * ratio + 1, total + ratio)
        labels.masked_fill_(higher, k)
        torch.maximum(highest, class_scores, out=highest)
    if undecided := int(total.isnan().sum()):
        raise FloatingPointError(
            f"the scores of {undecided:,} of {total.numel():,} pixels are not finite. The image "
            "has such values itself, or the network overflows: try TEST.PRECISION float32"
        )
    return labels, total.reciprocal_()
