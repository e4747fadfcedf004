"""
ASP-OCR, OCR as one branch of atrous spatial pyramid pooling: a variant of the published code
(``asp_ocrnet`` of openseg.pytorch), not of the paper.

Shape shorthand: N images, K object regions, h w feature size, I channels of the features, C of
each branch, O channels of the output.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .conv import ConvNormReLU
from .ocr import OCR, gather_regions


class ASPOCR(OCR):
    """
    Five branches see the features: a 1x1 convolution, three dilated 3x3 convolutions, and OCR's
    object contextual representations y behind a 3x3 convolution, which stand where ASPP has the
    pooled image. g fuses all five.

    Args:
        in_channels: I.
        channels: C; phi, psi and delta have half of them. The published code uses 256.
        out_channels: O. The published code uses 256.
        dilations: of the dilated branches; (12, 24, 36) is for stride 8.
        norm, dropout, transform_convs, scale_relation: of :class:`OCR`. The published code drops
            channels with probability 0.1 here.
    """

    takes_features = True

    def __init__(
        self,
        in_channels: int,
        channels: int = 256,
        out_channels: int = 256,
        *,
        dilations: Sequence[int] = (12, 24, 36),
        norm: str = "SyncBN",
        dropout: float = 0.1,
        transform_convs: int = 2,
        scale_relation: bool = True,
    ):
        super().__init__(
            channels,
            channels // 2,
            channels,
            norm=norm,
            transform_convs=transform_convs,
            scale_relation=scale_relation,
            dropout=dropout,
        )
        self.out_channels = out_channels
        self.bottleneck = ConvNormReLU(in_channels, channels, kernel_size=3, norm=norm)
        self.branches = nn.ModuleList(
            [ConvNormReLU(in_channels, channels, norm=norm)]
            + [
                ConvNormReLU(in_channels, channels, kernel_size=3, dilation=d, norm=norm)
                for d in dilations
            ]
        )
        # In the place of OCR's own g, which would see [x; y].
        self.g = ConvNormReLU((len(self.branches) + 1) * channels, out_channels, norm=norm)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """
        Args:
            x: features of the backbone [N, I, h, w]
            m: soft object regions (logits of the coarse segmentation) [N, K, h, w]

        Returns:
            z: augmented representations [N, O, h, w]
        """
        pixels = self.bottleneck(x)
        f = gather_regions(pixels, m)
        y = self.context(self.relation(pixels, m, f), f, x.shape[2:])
        return self.augment(torch.cat([branch(x) for branch in self.branches], dim=1), y)
