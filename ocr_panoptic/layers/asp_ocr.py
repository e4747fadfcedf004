"""
ASP-OCR, OCR as one branch of atrous spatial pyramid pooling: a variant of the published code
(``asp_ocrnet`` of openseg.pytorch), not of the paper.

Shape shorthand: N images, K object regions, h w feature size, I channels of the features, C of
each branch, O channels of the output.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .aspp import atrous_branches
from .ocr import OCR, gather_regions


class ASPOCR(OCR):
    """
    Five branches see the features: a 1x1 convolution, three dilated 3x3 convolutions, and OCR's
    object contextual representations y after a 3x3 convolution, which stand where ASPP has the
    pooled image. g fuses all five.

    Args:
        in_channels: I.
        channels: C; phi, psi and delta have half of them. The published code uses 256.
        out_channels: O. The published code uses 256.
        dilations: of the dilated branches; (12, 24, 36) is for stride 8.
        dropout, options: of :class:`OCR`. The published code drops with probability 0.1 here.
    """

    takes_features = True

    def __init__(
        self,
        in_channels: int,
        channels: int = 256,
        out_channels: int = 256,
        *,
        dilations: Sequence[int] = (12, 24, 36),
        dropout: float = 0.1,
        **options: Any,
    ):
        super().__init__(channels, channels // 2, channels, dropout=dropout, **options)
        self.out_channels = out_channels
        self.bottleneck = self.conv_norm_relu(in_channels, channels, kernel_size=3)
        self.branches = atrous_branches(self.conv_norm_relu, in_channels, channels, dilations)
        # In the place of OCR's own g, which would see [x; y].
        self.g = self.conv_norm_relu((len(self.branches) + 1) * channels, out_channels)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Augment the features [N, I, h, w], with m; see :meth:`.ContextScheme.forward`."""
        pixels = self.bottleneck(x)
        f = gather_regions(pixels, m)
        y = self.context(self.relation(pixels, m, f), f, x.shape[2:])
        branches = (branch(x) for branch in self.branches)
        return self.dropout(self.g(*branches, y))
