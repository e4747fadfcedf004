"""
GT-OCR, the paper's upper bound: object regions and relations from the ground truth.

Shape shorthand: that of :mod:`.ocr`, with K classes.
"""

import torch
from torch import Tensor

from .ocr import RegionContext, weighted_sum


class GroundTruthOCR(RegionContext):
    """
    OCR whose regions and relation are the truth (paragraph "Ground-truth OCR" of the paper's
    empirical analysis): m_ki = 1 and w_ik = 1 where pixel i has label k, else 0. phi and psi
    have no part in it.

    A region representation is the mean of its pixels, and 0 for a class without pixels. The
    pixels without a label form a region of their own, as in the published code, so that every
    pixel belongs to one.
    """

    needs_truth = True

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """With m the one-hot truth, all 0 where a pixel has no label, instead of logits; see
        :meth:`.ContextScheme.forward`."""
        truth = torch.cat([m, 1 - m.sum(dim=1, keepdim=True)], dim=1)
        truth = truth.flatten(2).to(torch.promote_types(x.dtype, torch.float32))  # [N, K + 1, P]
        share = truth / truth.sum(dim=2, keepdim=True).clamp(min=1)
        f = weighted_sum(x, share)
        y = self.context(truth.to(x.dtype), f, x.shape[2:])
        return self.dropout(self.g(x, y))


def one_hot_labels(
    labels: Tensor, num_classes: int, ignore_value: int, size: tuple[int, int]
) -> Tensor:
    """
    The truth at feature size, as :class:`GroundTruthOCR` takes it.

    Args:
        labels: integers [N, H, W] in 0..num_classes - 1 or ``ignore_value``
        num_classes: K
        ignore_value: label of the pixels that belong to no class
        size: (h, w); labels are resized to it by their nearest neighbours

    Returns:
        float32 [N, K, h, w], all 0 where a pixel is ignored
    """
    rows, columns = (
        ((torch.arange(n, device=labels.device) + 0.5) * (full / n)).long()
        for n, full in zip(size, labels.shape[1:])
    )
    labels = labels[:, rows[:, None], columns]
    classes = torch.arange(num_classes, device=labels.device)[:, None, None]
    return ((labels[:, None] == classes) & (labels[:, None] != ignore_value)).float()
