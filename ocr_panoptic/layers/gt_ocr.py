"""
GT-OCR, the paper's upper bound: object regions and relations from the ground truth.

Shape shorthand: N images, K classes = object regions, h w feature size, P = h * w pixels,
C channels of the pixel representations x, D key channels, O output channels.
"""

from typing import Any

import torch
from torch import Tensor

from .ocr import (
    RegionContext,
    gather_regions,
    pixel_region_relation,
    relation_transforms,
    weighted_sum,
)


class GroundTruthOCR(RegionContext):
    """
    OCR with object regions and the pixel-region relation taken from the ground truth.

    See "Ground-truth OCR" in the paper's empirical analysis: the regions m_ki and the relation w_ik
    are 1 if pixel i has label k, else 0. A region's representation is the mean of its pixels, or 0
    if the region is empty. Pixels without a label form an additional region, as published.

    Args:
        part: what comes from the ground truth: "gather" (the object regions m), "relation" (w) or
            "both". OCR computes the rest. openseg.pytorch calls the first two
            ``ideal_gather_ocrnet`` and ``ideal_distribute_ocrnet``.
    """

    needs_truth = True

    def __init__(
        self,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        *,
        part: str = "both",
        **options: Any,
    ):
        super().__init__(in_channels, key_channels, out_channels, **options)
        self.part = part
        self.adds_logits = part == "relation"
        if part == "gather":
            self.phi, self.psi = relation_transforms(self.conv_norm_relu, in_channels, key_channels)
        self.scale = key_channels**-0.5

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """
        Return the augmented map z [N, O, h, w] of x [N, C, h, w] and one-hot labels m [N, K, h, w].

        m is 0 at pixels without a label. If ``part`` is "relation", m is [N, 2K, h, w]: one-hot
        labels, then coarse logits.
        """
        if self.part == "relation":
            m, logits = m.chunk(2, dim=1)
            f = gather_regions(x, logits)
            f = torch.cat([f, f.new_zeros(*f.shape[:2], 1, 1)], dim=2)
        truth = torch.cat([m, 1 - m.sum(dim=1, keepdim=True)], dim=1)
        truth = truth.flatten(2).to(torch.promote_types(x.dtype, torch.float32))  # [N, K + 1, P]
        if self.part != "relation":
            f = weighted_sum(x, truth / truth.sum(dim=2, keepdim=True).clamp(min=1))
        w = truth.to(x.dtype)
        if self.part == "gather":
            w = pixel_region_relation(self.phi(x), self.psi(f), self.scale)
        return self.dropout(self.g(x, self.context(w, f, x.shape[2:])))
