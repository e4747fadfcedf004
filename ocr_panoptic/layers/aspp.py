"""
Atrous spatial pyramid pooling (DeepLabv3), and OCR as one of its branches.

ASPP is one of the multi-scale schemes that :paper:`OCR` compares with.

Shape shorthand: N images, K object regions, h w feature size, P = h * w pixels, I channels of the
features, C of each branch, O channels of the output.
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
    A 1x1 convolution, dilated 3x3 convolutions and the pooled image, fused by a 1x1 convolution g.

    All pixels share the pooled branch, so g's part for this branch is computed once per image. The
    branches are added up instead of being concatenated.

    The defaults are those of the published code.

    Args:
        in_channels, channels, out_channels: I, C and O.
        dilations: dilations of the 3x3 branches; (12, 24, 36) is for stride 8.
        dropout, options: see :class:`.ContextScheme`.
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
        """Augment the backbone's features x [N, I, h, w]; m is ignored."""
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
    """Return a 1x1 and dilated 3x3 convolutions, made by ``conv``."""
    dilated = (conv(in_channels, channels, kernel_size=3, dilation=d) for d in dilations)
    return nn.ModuleList([conv(in_channels, channels), *dilated])


class ASPOCR(OCR):
    """
    ASPP with OCR in place of the pooled image: a variant in published code, not in the paper.

    This is ``asp_ocrnet`` of openseg.pytorch. Five branches see the features: a 1x1 convolution,
    three dilated 3x3 convolutions, and OCR's object contextual representations y after a 3x3
    convolution. g fuses all five. phi, psi and delta have half of the ``channels``. The arguments
    are the same as in :class:`ASPP`; ``options`` are those of :class:`OCR`.
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
        # Replaces OCR's own g, which would see [x; y].
        self.g = self.conv_norm_relu((len(self.branches) + 1) * channels, out_channels)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Augment the backbone's features x [N, I, h, w] by the regions m [N, K, h, w]."""
        pixels = self.bottleneck(x)
        f = gather_regions(pixels, m)
        y = self.context(self.relation(pixels, m, f), f, x.shape[2:])
        branches = (branch(x) for branch in self.branches)
        return self.dropout(self.g(*branches, y))
