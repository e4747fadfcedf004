"""
OCR with the two relations that the paper compares with its own (paragraph "Pixel-region relations"
of its empirical analysis). The published code has neither; these are the forms that the paper
describes.

Shape shorthand: that of :mod:`.ocr`.
"""

from typing import Any

from torch import Tensor, nn

from .ocr import RegionContext, softmax_over_regions


class ACFOCR(RegionContext):
    """The relation of ACFNet, the coarse segmentation: w_ik = softmax_k(m_ki). No parameters."""

    def relation(self, x: Tensor, m: Tensor, f: Tensor) -> Tensor:
        """Return the relation of each pixel to the regions; see :meth:`RegionContext.relation`."""
        return softmax_over_regions(m.flatten(2), x.dtype)


class DoubleAttentionOCR(RegionContext):
    """
    The relation of Double Attention, predicted from the pixel alone by a 1x1 convolution:
    w_ik = softmax_k(a_k^T x_i + b_k). The region representations have no part in it.

    Args:
        num_classes: K.
        in_channels, key_channels, out_channels, options: of :class:`RegionContext`.
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
        """Return the relation of each pixel to the regions; see :meth:`RegionContext.relation`."""
        logits = self.relation_predictor(x).flatten(2)
        return softmax_over_regions(logits, logits.dtype)
