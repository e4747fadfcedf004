"""
GT-OCR, the paper's upper bound: object regions and relations from the ground truth.

Shape shorthand: that of :mod:`.ocr`, with K classes.
"""

from typing import Any

import torch
from torch import Tensor

from ocr_panoptic.errors import UserError

from .ocr import (
    RegionContext,
    gather_regions,
    pixel_region_relation,
    relation_transforms,
    weighted_sum,
)

PARTS = ("both", "gather", "relation")


class GroundTruthOCR(RegionContext):
    """
    OCR whose regions and relation are the truth (paragraph "Ground-truth OCR" of the paper's
    empirical analysis): m_ki = 1 and w_ik = 1 where pixel i has label k, else 0. phi and psi
    have no part in it.

    A region representation is the mean of its pixels, and 0 for a class without pixels. The
    pixels without a label form a region of their own, as in the published code, so that every
    pixel belongs to one.

    Args:
        part: "both", or "gather" or "relation" for one of them, the other being OCR's. Published
            variants of the code (``ideal_gather_ocrnet``, ``ideal_distribute_ocrnet`` of
            openseg.pytorch): they tell which of the two holds OCR back.
        in_channels, key_channels, out_channels, options: of :class:`.OCR`.
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
        if part not in PARTS:
            raise UserError(f"part is {part}; it is {' or '.join(PARTS)}")
        self.part = part
        self.adds_logits = part == "relation"
        if part == "gather":
            self.phi, self.psi = relation_transforms(self.conv_norm_relu, in_channels, key_channels)
        self.scale = key_channels**-0.5

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Augment x with m the one-hot truth, all 0 where a pixel has no label, instead of logits;
        with part "relation" the logits after it, [N, 2K, h, w]. See
        :meth:`.ContextScheme.forward`."""
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
