"""
Double attention (A2-Net), one of the relational schemes that :paper:`OCR` compares with.

Shape shorthand: N images, R regions, h w feature size, P = h * w pixels, C channels of x, D
channels of A, O channels of the output.
"""

from typing import Any

from torch import Tensor, nn

from .ocr import DoubleAttentionOCR


class DoubleAttention(DoubleAttentionOCR):
    """
    Two attentions with learned, unsupervised regions: gather and distribute.

    Gather: f_r = sum_i softmax_i(b_r^T x_i) A x_i. Distribute: y_i = rho(sum_r softmax_r(v_r^T x_i)
    f_r), z_i = g([x_i; y_i]).

    This is OCR with three changes: the regions are predicted without a loss, the relation is
    predicted from the pixel only, and delta is linear. As in OCR, A and the convolution of rho are
    applied to the R gathered regions instead of the P pixels. The published code has no such
    scheme; these channels are taken from the paper's complexity table.

    Args:
        num_regions: R. The paper uses 64.
        in_channels, key_channels, out_channels, options: see :class:`.RegionContext`.
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
        # Without biases: the spatial softmax cancels the first, and rho's norm has the second.
        self.region_predictor = nn.Conv2d(in_channels, num_regions, kernel_size=1, bias=False)
        self.delta = nn.Conv2d(in_channels, key_channels, kernel_size=1, bias=False)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Augment the pixel representations x [N, C, h, w]; m is ignored."""
        return super().forward(x, self.region_predictor(x))
