"""
OCR with the relation of Double Attention, one of the two that the paper compares with its own
(paragraph "Pixel-region relations" of its empirical analysis).

Shape shorthand: N images, K object regions, h w feature size, P = h * w pixels, C channels.
"""

import torch
from torch import Tensor, nn

from .ocr import RegionContext


class DoubleAttentionOCR(RegionContext):
    """
    OCR whose relation is predicted from the pixel alone: w_ik = softmax_k(a_k^T x_i + b_k), a 1x1
    convolution. The region representations have no part in it. The published code has no such
    scheme; this is the form that the paper describes.

    Args:
        num_classes: K.
        in_channels, key_channels, out_channels, norm, dropout: of :class:`RegionContext`.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        *,
        norm: str = "SyncBN",
        dropout: float = 0.05,
    ):
        super().__init__(in_channels, key_channels, out_channels, norm=norm, dropout=dropout)
        self.relation_predictor = nn.Conv2d(in_channels, num_classes, kernel_size=1)

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """From x alone, normalised in float32 or better; see :meth:`RegionContext.relation`."""
        logits = self.relation_predictor(x).flatten(2)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return logits.softmax(dim=1, dtype=dtype).to(logits.dtype)
