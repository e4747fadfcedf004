"""
Atrous spatial pyramid pooling (DeepLabv3), and OCR as one of its branches.

ASPP is one of the multi-scale schemes that :paper:`OCR` is compared with.

Shape shorthand: N images, K object regions, h w feature size, P = h * w pixels, I feature channels,
C channels of each branch, O output channels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .context_scheme import ContextScheme
from .conv import ConvNormReLU, as_map, pixelwise
from .ocr import OCR, gather_regions


class ASPP(ContextScheme):
    """
    Atrous spatial pyramid pooling: parallel branches, fused by a 1x1 convolution.

    The branches are a 1x1 convolution, dilated 3x3 convolutions, and a 1x1 convolution of the
    features' mean over the image. The defaults match the published code.

    Args:
        in_channels, channels, out_channels: numbers of input, branch and output channels (I, C, O).
        dilations: dilations of the 3x3 branches; (12, 24, 36) suits features with stride 8.
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
        super().__init__(out_channels, dropout=dropout, **options)
        self.channels = channels
        self.branches = atrous_branches(self.conv_norm_relu, in_channels, channels, dilations)
        self.pooled = self.conv_norm_relu(in_channels, channels)
        self.g = self.conv_norm_relu((len(self.branches) + 1) * channels, out_channels)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Return the augmented map z [N, O, h, w] of the features x [N, I, h, w]; m is ignored."""
        # Sum g over the branches instead of concatenating them.
        weight, bias = self.g.linear_part()
        *weights, weight_pooled = weight.flatten(1).split(self.channels, dim=1)
        pooled = self.pooled(F.adaptive_avg_pool2d(x, 1))
        z = pixelwise(weight_pooled, pooled.flatten(2), bias).repeat(1, 1, x[0, 0].numel())
        for weight, branch in zip(weights, self.branches):
            z = pixelwise(weight, branch(x).flatten(2), add_to=z)
        return self.dropout(self.g.finish(as_map(z, x.shape[2:])))


def atrous_branches(
    conv: Callable[..., ConvNormReLU], in_channels: int, channels: int, dilations: Sequence[int]
) -> nn.ModuleList:
    """Return a 1x1 convolution and a 3x3 convolution for each dilation, all made by ``conv``."""
    dilated = (conv(in_channels, channels, kernel_size=3, dilation=d) for d in dilations)
    return nn.ModuleList([conv(in_channels, channels), *dilated])


class ASPOCR(OCR):
    """
    ASPP with an OCR branch instead of the pooled branch: ``asp_ocrnet`` of openseg.pytorch.

    The paper does not describe this variant. A 3x3 convolution computes the pixel representations
    for the OCR branch, which has ``channels // 2`` key channels. The other branches are a 1x1
    convolution and dilated 3x3 convolutions of the features. A 1x1 convolution fuses all branches.
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
        # Replaces OCR's own g, whose input would be [x; y].
        self.g = self.conv_norm_relu((len(self.branches) + 1) * channels, out_channels)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """
        Return the augmented map z [N, O, h, w].

        The features x are [N, I, h, w], the soft object regions m [N, K, h, w].
        """
        pixels = self.bottleneck(x)
        f = gather_regions(pixels, m)
        y = self.context(self.relation(pixels, m, f), f, x.shape[2:])
        branches = (branch(x) for branch in self.branches)
        return self.dropout(self.g(*branches, y))
