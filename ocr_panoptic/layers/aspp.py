"""
Atrous spatial pyramid pooling of DeepLabv3, one of the multi-scale schemes that :paper:`OCR`
compares with.

Shape shorthand: N images, h w feature size, P = h * w pixels, I channels of the features, C of
each branch, O channels of the output.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from .context_scheme import ContextScheme
from .conv import ConvNormReLU, apply_norm, pixelwise


class ASPP(ContextScheme):
    """
    A 1x1 convolution, dilated 3x3 convolutions, and the pooled image, fused by g, a 1x1
    convolution of all. The pooled branch is the same for all pixels, so g's part for it is
    computed once, and the branches are added up instead of being concatenated.

    Args:
        in_channels: I.
        channels: C. The published code uses 256.
        out_channels: O. The published code uses 256.
        dilations: of the dilated branches; (12, 24, 36) is for stride 8.
        norm: any name that Detectron2's ``get_norm`` knows, "" for none.
        dropout: probability with which a channel of the output is dropped in training. The
            published code uses 0.1.
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
    ):
        super().__init__()
        self.channels = channels
        self.out_channels = out_channels
        self.branches = nn.ModuleList(
            [ConvNormReLU(in_channels, channels, norm=norm)]
            + [
                ConvNormReLU(in_channels, channels, kernel_size=3, dilation=d, norm=norm)
                for d in dilations
            ]
        )
        self.pooled = ConvNormReLU(in_channels, channels, norm=norm)
        self.g = ConvNormReLU((len(self.branches) + 1) * channels, out_channels, norm=norm)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """
        Args:
            x: features of the backbone [N, I, h, w]
            m: not used

        Returns:
            z: augmented representations [N, O, h, w]
        """
        weight, bias, norm = self.g.linear_part()
        *weights, weight_pooled = weight.flatten(1).split(self.channels, dim=1)
        pooled = self.pooled(F.adaptive_avg_pool2d(x, 1))
        z = pixelwise(weight_pooled, pooled.flatten(2), bias).repeat(1, 1, x[0, 0].numel())
        for weight, branch in zip(weights, self.branches):
            z = pixelwise(weight, branch(x).flatten(2), add_to=z)
        return self.dropout(apply_norm(norm, z.unflatten(2, x.shape[2:])).relu_())
