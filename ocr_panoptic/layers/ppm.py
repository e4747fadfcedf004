"""
The pyramid pooling module of PSPNet, one of the multi-scale schemes that :paper:`OCR` compares
with.

Shape shorthand: N images, h w feature size, P = h * w pixels, I channels of the features, O of
each pooled branch and of the output, s cells of a pooled map along each side.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .context_scheme import ContextScheme
from .conv import pixelwise


class PPM(ContextScheme):
    """
    z = g([x; up(t_1(pool_1(x))); ...]): the features pooled to a few sizes, a 1x1 transform of
    each, upsampled, and a 3x3 convolution g of all.

    An upsampled map of s * s cells has rank s * s over the pixels, and so has its convolution.
    g's part for it is therefore a product of the weights with the s * s cells, and then of the
    result with 9 * s * s patterns, each a cell's upsampled weight as seen at one of the 9 taps.
    That is the same function, in training too, for half of the operations of the whole module.

    Args:
        in_channels: I.
        out_channels: O. The published code has 512, for features of 2048 channels.
        sizes: s of each pooled map.
        dropout, options: of :class:`.ContextScheme`. The published code drops with probability 0.1.
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
        self.channels = [in_channels] + [out_channels] * len(self.sizes)  # that g sees
        self.g = self.conv_norm_relu(sum(self.channels), out_channels, kernel_size=3)

    def pyramid(self, x: Tensor) -> list[Tensor]:
        """The transformed pooled maps of the features, [N, O, s, s] for each size."""
        return [t(F.adaptive_avg_pool2d(x, s)) for s, t in zip(self.sizes, self.transforms)]

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Augment the features [N, I, h, w], without m; see :meth:`.ContextScheme.forward`."""
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
            add_to=z.view(*z.shape[:2], -1),  # raises where it would be a copy
        )
        return self.dropout(self.g.finish(z))


def upsampled_patterns(size: int, like: Tensor) -> Tensor:
    """
    Return what each cell of an s x s map contributes, after bilinear upsampling, to the 3x3
    neighbourhood of each pixel of ``like``: [s * s * 9, P], the cells first, then the taps; zero
    where a tap is outside.
    """
    cells = torch.eye(size * size, dtype=like.dtype, device=like.device).view(1, -1, size, size)
    upsampled = F.interpolate(cells, size=like.shape[2:], mode="bilinear", align_corners=False)
    return F.unfold(upsampled, kernel_size=3, padding=1)[0]
