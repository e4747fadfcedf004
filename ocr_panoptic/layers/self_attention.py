"""
Self-attention among all pixels: the non-local block as OCNet uses it.

Self-attention is one of the relational schemes that :paper:`OCR` is compared with.

Shape shorthand: N images, h w feature size, C channels of the pixel representations x, D key
channels, O output channels.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .context_scheme import ContextScheme
from .conv import as_map, pixelwise
from .transformer import attend, pixel_tokens


class SelfAttention(ContextScheme):
    """
    Self-attention among pixels, with a single convolution in each transform.

    y_i = W sum_j softmax_j(phi(x_i)^T psi(x_j) / sqrt(D)) v(x_j), z_i = g([x_i; y_i]), as in the
    paper's complexity table. phi, psi and g are conv-norm-ReLU layers; v and W are linear, without
    bias; W starts at zero. The defaults match the paper.
    """

    def __init__(
        self,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        **options: Any,
    ):
        super().__init__(out_channels, **options)
        self.phi = self.conv_norm_relu(in_channels, key_channels)
        self.psi = self.conv_norm_relu(in_channels, key_channels)
        # v and W need no bias, because the softmax sums to 1 and g's norm has a bias.
        self.value = nn.Conv2d(in_channels, key_channels, kernel_size=1, bias=False)
        self.output = nn.Conv2d(key_channels, out_channels, kernel_size=1, bias=False)
        nn.init.zeros_(self.output.weight)
        self.g = self.conv_norm_relu(in_channels + out_channels, out_channels)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Return the augmented map z [N, O, h, w] of x [N, C, h, w]; m is ignored."""
        attended = attend(*(pixel_tokens(t(x)) for t in (self.phi, self.psi, self.value)))
        weight, bias = self.g.linear_part()
        weight_x, weight_y = weight.flatten(1).split([x.shape[1], self.out_channels], dim=1)
        # g's convolution directly follows W, so their product is applied, and y is never computed.
        weight_y = torch.mm(weight_y, self.output.weight.flatten(1))
        z = pixelwise(weight_x, x.flatten(2), bias)
        z = pixelwise(weight_y, attended.transpose(1, 2), add_to=z)
        return self.dropout(self.g.finish(as_map(z, x.shape[2:])))
