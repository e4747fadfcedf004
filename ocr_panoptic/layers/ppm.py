"""
PSPNet's pyramid pooling module, and OCR with pyramid pooling.

PPM is one of the multi-scale schemes that :paper:`OCR` is compared with.

Shape shorthand: N images, h w feature size, I feature channels, O output channels, s x s cells of a
pooled map. In OCR with pyramid pooling: C channels of the pixel representations x, S cells of all
pooled maps together.
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

    The features x are pooled to maps of s x s cells, for several s. Each pooled map is transformed
    by a 1x1 convolution t_j and upsampled. A 3x3 convolution g fuses the upsampled maps with x.

    Args:
        in_channels, out_channels: numbers of input and output channels (published: 2048 and 512).
        sizes: side s of each pooled map.
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
        self.channels = [in_channels] + [out_channels] * len(self.sizes)  # channels of g's inputs
        self.g = self.conv_norm_relu(sum(self.channels), out_channels, kernel_size=3)

    def pyramid(self, x: Tensor) -> list[Tensor]:
        """Return the pooled and transformed map [N, O, s, s] of each size s."""
        return [t(F.adaptive_avg_pool2d(x, s)) for s, t in zip(self.sizes, self.transforms)]

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Return the augmented map z [N, O, h, w] of the features x [N, I, h, w]; m is ignored."""
        # Multiply g's weights with the few cells instead of the upsampled pixels, then sum these
        # products at each pixel. This halves the number of operations.
        weight, bias = self.g.linear_part()
        weight_x, *weights = weight.split(self.channels, dim=1)
        responses = [
            torch.einsum("oikl,nip->nopkl", w, cells.flatten(2)).flatten(2)
            for w, cells in zip(weights, self.pyramid(x))
        ]
        # The weights of the cells at the 3x3 neighbours of each pixel; 0 outside the map.
        cells = (upsampled_cells(s, x)[None] for s in self.sizes)
        patterns = [F.unfold(weights, kernel_size=3, padding=1)[0] for weights in cells]
        z = F.conv2d(x, weight_x, bias, padding=1)
        pixelwise(
            torch.cat(responses, dim=2),
            torch.cat(patterns).expand(x.shape[0], -1, -1),
            add_to=z.view(*z.shape[:2], -1),  # raises an error instead of copying z
        )
        return self.dropout(self.g.finish(z))


class PPMOCR(OCR):
    """
    OCR with additional pyramid pooling, z_i = g([x_i; y_i; up(t_1(pool_1(x)))_i; ...]).

    The y_i are the object contextual representations. The pixel representations x are pooled to
    maps of s x s cells, for several s, transformed by 1x1 convolutions t_j, and upsampled. g is a
    conv-norm-ReLU layer. This scheme is not in the paper.

    Args:
        in_channels: number of input channels, C; each pooled map is reduced to C // 4 channels.
        sizes: side s of each pooled map.
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
        # Channels of g's inputs.
        self.channels = [in_channels, out_channels] + [branch] * len(self.sizes)
        self.g = self.conv_norm_relu(sum(self.channels), out_channels)

    def extra_term(self, x: Tensor) -> ExtraTerm:
        """
        Return the pooled maps' contribution to the convolution of :meth:`fuse`.

        A pixel's contribution is a weighted sum of one vector for each of the S pooled cells. The
        result holds the vectors [N, O, S] and the bilinear weights [S, h, w].
        """
        # This way, g's convolution is computed for S cells instead of all pixels.
        weights = self.g.linear_part()[0].flatten(1).split(self.channels, dim=1)[2:]
        values = [
            pixelwise(weight, transform(F.adaptive_avg_pool2d(x, s)).flatten(2))
            for s, transform, weight in zip(self.sizes, self.transforms, weights)
        ]
        return torch.cat(values, dim=2), torch.cat([upsampled_cells(s, x) for s in self.sizes])

    def fuse(self, x: Tensor, y: Tensor, extra: ExtraTerm | None) -> Tensor:
        """Return the augmented map [N, O, n, w], given n rows of x, y and ``extra``."""
        weight, bias = self.g.linear_part()
        weight_x, weight_y, *_ = weight.flatten(1).split(self.channels, dim=1)
        assert extra is not None  # extra_term above never returns None
        values, cells = extra
        z = pixelwise(weight_x, x.flatten(2), bias)
        z = pixelwise(weight_y, y.flatten(2), add_to=z)
        z = pixelwise(values, cells.flatten(1).expand(len(x), -1, -1), add_to=z)
        return self.g.finish(as_map(z, x.shape[2:]), self.dropout)


def upsampled_cells(size: int, like: Tensor) -> Tensor:
    """
    Return the bilinear weight [s * s, h, w] of each cell at each pixel of ``like``.

    The cells form an s x s map, which is upsampled to the h x w pixels; s is ``size``.
    """
    cells = torch.eye(size * size, dtype=like.dtype, device=like.device).view(1, -1, size, size)
    return F.interpolate(cells, size=like.shape[2:], mode="bilinear", align_corners=False)[0]
