"""
PSPNet's pyramid pooling module, and OCR with pyramid pooling.

PPM is one of the multi-scale schemes that :paper:`OCR` compares with.

Shape shorthand: N images, K object regions, h w feature size, P = h * w pixels, I channels of the
features, O channels of the output (and, in PPM, of each pooled branch), s cells along each side of
a pooled map. PPM-OCR: C channels of the pixel representations, B channels of each pooled branch, S
cells in all pooled maps together.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .context_scheme import ContextScheme
from .conv import as_map, pixelwise
from .ocr import OCR, ExtraTerm


class PPM(ContextScheme):
    """
    The pyramid pooling module, z = g([x; up(t_1(pool_1(x))); ...]).

    The features are pooled to a few sizes. Each pooled map is transformed by a 1x1 convolution,
    upsampled, and fused with x by a 3x3 convolution g.

    The code never upsamples the maps. It multiplies g's weights with the s * s cells of each map,
    and spreads the products over the pixels with 9 * s * s fixed patterns: a cell's bilinear
    weight at each pixel, as seen by one of the 9 taps. The result is the same, in training too,
    with half of the operations.

    Args:
        in_channels, out_channels: I and O. The published code has 2048 and 512.
        sizes: side s of each pooled map, in cells.
        dropout, options: see :class:`.ContextScheme`.
    """

    takes_features = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 512,
        *,
        sizes: Sequence[int] = (1, 2, 3, 6),
        dropout: float = 0.1,
        **options: Any,
    ):
        super().__init__(out_channels, dropout=dropout, **options)
        self.sizes = tuple(sizes)
        self.transforms = nn.ModuleList(
            self.conv_norm_relu(in_channels, out_channels) for _ in self.sizes
        )
        self.channels = [in_channels] + [out_channels] * len(self.sizes)  # of g's inputs
        self.g = self.conv_norm_relu(sum(self.channels), out_channels, kernel_size=3)

    def pyramid(self, x: Tensor) -> list[Tensor]:
        """Return the transformed pooled maps of the features, [N, O, s, s] for each size."""
        return [t(F.adaptive_avg_pool2d(x, s)) for s, t in zip(self.sizes, self.transforms)]

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Augment the backbone's features x [N, I, h, w]; m is ignored."""
        weight, bias = self.g.linear_part()
        weight_x, *weights = weight.split(self.channels, dim=1)
        responses = [
            torch.einsum("oikl,nip->nopkl", w, cells.flatten(2)).flatten(2)
            for w, cells in zip(weights, self.pyramid(x))
        ]
        patterns = [upsampled_patterns(s, x) for s in self.sizes]
        z = F.conv2d(x, weight_x, bias, padding=1)
        pixelwise(
            torch.cat(responses, dim=2),
            torch.cat(patterns).expand(x.shape[0], -1, -1),
            add_to=z.view(*z.shape[:2], -1),  # raises an error instead of copying z
        )
        return self.dropout(self.g.finish(z))


def upsampled_patterns(size: int, like: Tensor) -> Tensor:
    """
    Return the bilinear weight of each cell of an s x s map in the 3x3 neighbourhood of each pixel.

    The result is [s * s * 9, P], in the order cell, tap; weights of taps outside of ``like`` are
    zero.
    """
    return F.unfold(upsampled_cells(size, like)[None], kernel_size=3, padding=1)[0]


class PPMOCR(OCR):
    """
    OCR with additional pyramid pooling, z_i = g([x_i; y_i; up(t_1(pool_1(x)))_i; ...]).

    The pixel representations are pooled to a few sizes. Each pooled map is transformed by a 1x1
    convolution and upsampled. Pyramid pooling describes a pixel's surroundings, OCR its class. The
    paper has no such scheme.

    The code never upsamples the maps. g is linear before its norm, so the code multiplies g's
    weights with the S cells, and upsamples the products.

    Args:
        in_channels: C; each pooled branch has a quarter as many channels, B.
        key_channels, out_channels, options: see :class:`OCR`.
        sizes: side s of each pooled map, in cells.
    """

    def __init__(
        self,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        *,
        sizes: Sequence[int] = (1, 2, 3, 6),
        **options: Any,
    ):
        super().__init__(in_channels, key_channels, out_channels, **options)
        self.sizes = tuple(sizes)
        branch = max(1, in_channels // 4)
        self.transforms = nn.ModuleList(
            self.conv_norm_relu(in_channels, branch) for _ in self.sizes
        )
        self.channels = [in_channels, out_channels] + [branch] * len(self.sizes)  # of g's inputs
        self.g = self.conv_norm_relu(sum(self.channels), out_channels)

    def extra_term(self, x: Tensor) -> ExtraTerm:
        """Return the pooled maps' contribution to g: values [N, O, S] and weights [S, h, w]."""
        weights = self.g.linear_part()[0].flatten(1).split(self.channels, dim=1)[2:]
        values = [
            pixelwise(weight, transform(F.adaptive_avg_pool2d(x, s)).flatten(2))
            for s, transform, weight in zip(self.sizes, self.transforms, weights)
        ]
        return torch.cat(values, dim=2), torch.cat([upsampled_cells(s, x) for s in self.sizes])

    def fuse(self, x: Tensor, y: Tensor, extra: ExtraTerm | None) -> Tensor:
        """Return g([x; y; pooled maps]) [N, O, n, w], the augmented representations of n rows."""
        weight, bias = self.g.linear_part()
        weight_x, weight_y, *_ = weight.flatten(1).split(self.channels, dim=1)
        assert extra is not None  # of extra_term
        values, cells = extra
        z = pixelwise(weight_x, x.flatten(2), bias)
        z = pixelwise(weight_y, y.flatten(2), add_to=z)
        z = pixelwise(values, cells.flatten(1).expand(len(x), -1, -1), add_to=z)
        return self.g.finish(as_map(z, x.shape[2:]), self.dropout)


def upsampled_cells(size: int, like: Tensor) -> Tensor:
    """Return the bilinear weights [s * s, h, w] of the cells of an s x s map at all pixels."""
    cells = torch.eye(size * size, dtype=like.dtype, device=like.device).view(1, -1, size, size)
    return F.interpolate(cells, size=like.shape[2:], mode="bilinear", align_corners=False)[0]
