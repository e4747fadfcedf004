"""
Double attention (A2-Net), one of the relational schemes that :paper:`OCR` is compared with.

Shape shorthand: N images, R regions, h w feature size, P = h * w pixels, C channels of x, D key
channels, O output channels.
"""

from typing import Any

from torch import Tensor, nn

from .ocr import DoubleAttentionOCR


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
