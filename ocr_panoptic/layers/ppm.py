"""
The pyramid pooling module of PSPNet, one of the multi-scale schemes that :paper:`OCR` compares
with.

Shape shorthand: N images, h w feature size, P = h * w pixels, I channels of the features, O of
each pooled branch and of the output, s cells of a pooled map along each side.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .context_scheme import ContextScheme
from .conv import ConvNormReLU, apply_norm, pixelwise


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
        norm: any name that Detectron2's ``get_norm`` knows, "" for none.
        dropout: probability with which a channel of the output is dropped in training. The
            published code uses 0.1.
    """

    takes_features = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 512,
        *,
        sizes: Sequence[int] = (1, 2, 3, 6),
        norm: str = "SyncBN",
        dropout: float = 0.1,
    ):
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.sizes = tuple(sizes)
        self.transforms = nn.ModuleList(
            ConvNormReLU(in_channels, out_channels, norm=norm) for _ in self.sizes
        )
        self.g = ConvNormReLU(
            in_channels + len(self.sizes) * out_channels, out_channels, kernel_size=3, norm=norm
        )
        self.dropout = nn.Dropout2d(dropout)

    def pyramid(self, x: Tensor) -> list[Tensor]:
        """
        Args:
            x: features of the backbone [N, I, h, w]

        Returns:
            transformed pooled maps, [N, O, s, s] for each size
        """
        return [t(F.adaptive_avg_pool2d(x, s)) for s, t in zip(self.sizes, self.transforms)]

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """
        Args:
            x: features of the backbone [N, I, h, w]
            m: not used

        Returns:
            z: augmented representations [N, O, h, w]
        """
        weight, bias, norm = self.g.linear_part()
        channels = [self.in_channels] + [self.out_channels] * len(self.sizes)
        weight_x, *weights = weight.split(channels, dim=1)
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
        return self.dropout(apply_norm(norm, z).relu_())


def upsampled_patterns(size: int, like: Tensor) -> Tensor:
    """
    What each cell of a map contributes, after bilinear upsampling, to the 3x3 neighbourhood of
    each pixel.

    Args:
        size: s
        like: [N, I, h, w], for size, dtype and device

    Returns:
        [s * s * 9, P], the cells first, then the taps; zero where a tap is outside
    """
    cells = torch.eye(size * size, dtype=like.dtype, device=like.device).view(1, -1, size, size)
    upsampled = F.interpolate(cells, size=like.shape[2:], mode="bilinear", align_corners=False)
    return F.unfold(upsampled, kernel_size=3, padding=1)[0]
