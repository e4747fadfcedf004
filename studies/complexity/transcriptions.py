"""
Compute the context schemes as in their papers, to count FLOPs for the complexity table.

No operation is moved, merged or left out. Each function takes the parameters of a context scheme of
``ocr_panoptic.layers`` and returns the scheme's result.

Shape letters: N images, K classes, I channels, height h and width w of the features, and C channels
of the pixel representations.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocr_panoptic.layers import (
    ASPP,
    OCR,
    PPM,
    ChannelAttention,
    ContextScheme,
    ConvNormReLU,
    CrissCrossAttention,
    DoubleAttention,
    DualAttention,
    PositionAttention,
    SelfAttention,
    gather_regions,
)


def _ppm(scheme: PPM, x: Tensor, m: Tensor) -> Tensor:
    pyramid = [
        F.interpolate(cells, size=x.shape[2:], mode="bilinear", align_corners=False)
        for cells in scheme.pyramid(x)
    ]
    return scheme.g(torch.cat([x, *pyramid], dim=1))


def _aspp(scheme: ASPP, x: Tensor, m: Tensor) -> Tensor:
    pooled = scheme.pooled(F.adaptive_avg_pool2d(x, 1)).expand(-1, -1, *x.shape[2:])
    return scheme.g(torch.cat([*(branch(x) for branch in scheme.branches), pooled], dim=1))


def _attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    products = queries.flatten(2).transpose(1, 2) @ keys.flatten(2)  # all pairs of pixels
    return (values.flatten(2) @ products.softmax(dim=2).transpose(1, 2)).view_as(values)


def _danet(scheme: DualAttention, x: Tensor, m: Tensor) -> Tensor:
    reduction, attention, smoothing = scheme.position
    pixels = reduction(x)
    y = _attend(attention.query(pixels), attention.key(pixels), attention.value(pixels))
    return smoothing(pixels + attention.gamma * y) + scheme.channel(x)


def _self_attention(scheme: SelfAttention, x: Tensor, m: Tensor) -> Tensor:
    queries, keys, values = scheme.phi(x), scheme.psi(x), scheme.value(x)
    y = scheme.output(_attend(queries * keys.shape[1] ** -0.5, keys, values))
    return scheme.g(torch.cat([x, y], dim=1))


def _double_attention(scheme: DoubleAttention, x: Tensor, m: Tensor) -> Tensor:
    gather = scheme.region_predictor(x).flatten(2).softmax(dim=2)
    regions = scheme.delta(x).flatten(2) @ gather.transpose(1, 2)
    distribute = scheme.relation_predictor(x).flatten(2).softmax(dim=1)
    y = scheme.rho((regions @ distribute).unflatten(2, x.shape[2:]))
    return scheme.g(torch.cat([x, y], dim=1))


def _ocr(scheme: OCR, x: Tensor, m: Tensor) -> Tensor:
    f = gather_regions(x, m)
    w = scheme.relation(x, m, f)
    y = scheme.rho((scheme.delta(f).flatten(2) @ w).unflatten(2, x.shape[2:]))
    return scheme.g(torch.cat([x, y], dim=1))


_TRANSCRIPTIONS: dict[type, Callable[[ContextScheme, Tensor, Tensor], Tensor]] = {
    PPM: _ppm,
    ASPP: _aspp,
    DualAttention: _danet,
    SelfAttention: _self_attention,
    DoubleAttention: _double_attention,
    OCR: _ocr,
}


def transcribed(scheme: ContextScheme, x: Tensor, m: Tensor) -> Tensor:
    """
    Compute a context scheme's result (without dropout) by the operations in the scheme's paper.

    Criss-cross attention is not transcribed: the scheme itself is called.

    Args:
        scheme: context scheme whose parameters are used.
        x: features [N, I, h, w] or pixel representations [N, C, h, w], whichever the scheme takes
        m: coarse logits [N, K, h, w]

    Returns:
        z: augmented representations [N, C', h, w]
    """
    return _TRANSCRIPTIONS.get(type(scheme), type(scheme).__call__)(scheme, x, m)


class _PlainPositionAttention(PositionAttention):
    attend = staticmethod(_attend)


class CompactAttention(nn.Module):
    """
    The head whose parameters the OCR paper presumably counts for DANet and criss-cross attention.

    It has 10.6 million parameters, as in the paper: a 3x3 convolution to 512 channels, two
    attention steps, and a 1x1 convolution of the reduced features and both steps' results. The
    steps are position and channel attention in DANet; criss-cross attention is applied twice with
    shared weights.

    Args:
        in_channels: number of feature channels, I.
        criss_cross: whether to use criss-cross attention instead of DANet's attention.
        channels: number of output channels, C.
    """

    def __init__(self, in_channels: int, criss_cross: bool, channels: int = 512):
        super().__init__()
        self.reduction = ConvNormReLU(in_channels, channels, kernel_size=3, norm="BN")
        self.criss_cross = criss_cross
        self.attentions = nn.ModuleList(
            [CrissCrossAttention(channels)]
            if criss_cross
            else [_PlainPositionAttention(channels), ChannelAttention()]
        )
        self.g = ConvNormReLU(3 * channels, channels, norm="BN")

    def forward(self, x: Tensor) -> Tensor:
        """Return augmented representations [N, C, h, w] for features x [N, I, h, w]."""
        x = self.reduction(x)
        first = self.attentions[0](x)
        second = self.attentions[0](first) if self.criss_cross else self.attentions[1](x)
        return self.g(torch.cat([x, first, second], dim=1))
