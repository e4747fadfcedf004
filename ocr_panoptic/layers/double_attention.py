"""
Double attention (A2-Net), one of the relational schemes that :paper:`OCR` compares with.

Shape shorthand: that of :mod:`.ocr`, with R regions.
"""

from typing import Any

from torch import Tensor, nn

from .ocr import DoubleAttentionOCR


class DoubleAttention(DoubleAttentionOCR):
    """
    Two attentions with learned, unsupervised regions: gather
    f_r = sum_i softmax_i(b_r^T x_i) A x_i, and distribute
    y_i = rho(sum_r softmax_r(v_r^T x_i) f_r); z_i = g([x_i; y_i]).

    That is OCR whose regions are predicted from the pixels without a loss, whose relation is
    predicted from the pixel alone, and whose delta is linear, and it is computed as OCR is: A is
    applied to the R gathered regions instead of the P pixels, and so is the convolution of rho.
    The published code has no such scheme; these are the channels of the paper's complexity table.

    Args:
        num_regions: R. The paper uses 64.
        in_channels, out_channels, options: of :class:`.RegionContext`.
        key_channels: D, of A. The paper's complexity fits 256.
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
        # Without biases: the spatial softmax cancels the one, rho's norm has the other.
        self.region_predictor = nn.Conv2d(in_channels, num_regions, kernel_size=1, bias=False)
        self.delta = nn.Conv2d(in_channels, key_channels, kernel_size=1, bias=False)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Augment x, without m; see :meth:`.ContextScheme.forward`."""
        return super().forward(x, self.region_predictor(x))
