"""
Variants of OCR that the paper compares: other relations, regions from the truth or without a loss.

Shape shorthand: N images, K classes = object regions, R learned regions, h w feature size,
P = h * w pixels, C channels of the pixel representations x, D key channels, O output channels.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .ocr import (
    RegionContext,
    gather_regions,
    pixel_region_relation,
    relation_transforms,
    softmax_over_regions,
    weighted_sum,
)


class ACFOCR(RegionContext):
    """
    OCR with ACFNet's relation, the coarse segmentation: w_ik = softmax_k(m_ki), without parameters.

    The paper compares this relation with its own under "Pixel-region relations".
    """

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """Return the softmax of m [N, K, h, w] over the regions, [N, K, P]; f is ignored."""
        return softmax_over_regions(m.flatten(2), x.dtype)


class DoubleAttentionOCR(RegionContext):
    """
    OCR with Double Attention's relation, predicted by a 1x1 convolution from the pixel only.

    w_ik = softmax_k(a_k^T x_i + b_k) does not depend on the region representations. The paper
    compares this relation with its own.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        **options: Any,
    ):
        super().__init__(in_channels, key_channels, out_channels, **options)
        self.relation_predictor = nn.Conv2d(in_channels, num_classes, kernel_size=1)

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """Return the relation w [N, K, P], predicted from x [N, C, h, w]; m and f are ignored."""
        logits = self.relation_predictor(x).flatten(2)
        return softmax_over_regions(logits, logits.dtype)


class DoubleAttention(DoubleAttentionOCR):
    """
    A scheme that gathers features in learned regions and distributes them to the pixels.

    Gather: f_r = sum_i softmax_i(b_r^T x_i) A x_i. Distribute: y_i = rho(sum_r softmax_r(v_r^T x_i)
    f_r), z_i = g([x_i; y_i]). b_r, v_r and A are learned; rho and g are conv-norm-ReLU layers.

    The scheme differs from OCR in three ways: the regions have no loss, the pixel-region relation
    is predicted from the pixel only, and the transform A of the regions is linear. The default
    channels follow the paper's complexity table.

    Args:
        num_regions: number of regions, R; the paper uses 64.
    """

    uses_regions = False

    def __init__(
        self,
        num_regions: int = 64,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        **options: Any,
    ):
        super().__init__(num_regions, in_channels, key_channels, out_channels, **options)
        # No biases: the spatial softmax cancels the predictor's bias, rho's norm delta's.
        self.region_predictor = nn.Conv2d(in_channels, num_regions, kernel_size=1, bias=False)
        self.delta = nn.Conv2d(in_channels, key_channels, kernel_size=1, bias=False)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Return the augmented map z [N, O, h, w] of x [N, C, h, w]; m is ignored."""
        return super().forward(x, self.region_predictor(x))


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
