"""The probability of the labels that are chosen. Shape letters: those of :mod:`.inference`."""

from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def confident_argmax(scores: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """argmax over classes that come in groups, and the softmax at it.

    Args:
        scores: logits of the classes of a group, float32 [N,G,H,W].

    Returns:
        int64 [N,H,W], the first class of equal scores, and float32 [N,H,W] in 1/K..1, NaN where no
        score is the highest: see :func:`check_decided`.
    """
    highest, labels, total, done = None, None, None, 0  # total: the sum of exp(score - highest)
    for group in scores:
        alone = group.shape[1] == 1
        found, best = (group[:, 0], 0) if alone and done else group.max(dim=1)
        share = 1 if alone else (group - found[:, None]).exp_().sum(dim=1)
        if highest is None:
            highest, labels = found, best
            total = torch.ones_like(highest) if alone else share
        else:
            # One of the two factors of a running softmax is always exp(0).
            ratio = (found - highest).abs_().neg_().exp_()
            higher = found > highest
            smaller = ratio if alone else ratio * share
            total = torch.where(higher, total * ratio + share, total + smaller)
            if alone:
                labels.masked_fill_(higher, done)
            else:
                labels = torch.where(higher, best + done, labels)
            torch.maximum(highest, found, out=highest)
        done += group.shape[1]
    return labels, total.reciprocal_()


def check_decided(confidence: Tensor) -> None:
    """
    Args:
        confidence: of :func:`confident_argmax`.

    Raises:
        FloatingPointError: a pixel has no highest score: one is NaN, or two are infinite.
    """
    if undecided := int(confidence.isnan().sum()):
        raise FloatingPointError(
            f"the scores of {undecided:,} of {confidence.numel():,} pixels are not finite. The "
            "image has such values itself, or the network overflows: try TEST.PRECISION float32"
        )
