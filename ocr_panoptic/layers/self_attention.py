"""
Self-attention among all pixels (the non-local block as OCNet uses it), one of the relational
schemes that :paper:`OCR` compares with.

Shape shorthand: N images, h w feature size, P = h * w pixels, C channels of the pixel
representations, D key channels, O channels of the output.
"""

import torch
from torch import Tensor, nn

from .context_scheme import ContextScheme
from .conv import ConvNormReLU, apply_norm, pixelwise
from .transformer import attend, pixel_tokens


class SelfAttention(ContextScheme):
    """
    y_i = W sum_j softmax_j(phi(x_i)^T psi(x_j) / sqrt(D)) v(x_j), z_i = g([x_i; y_i]), with a
    single convolution in each transform, which is what the paper's complexity table has.

    phi, psi and g are conv -> norm -> ReLU, v and W are linear; W starts at zero. Neither needs a
    bias, as the weights sum to 1 and g's norm has one. Nothing stands between W and g, so their
    product is applied at once, and y is never computed.

    Args:
        in_channels: C. The paper uses 512.
        key_channels: D, of phi, psi and v. The paper uses 256.
        out_channels: O, of W and g. The paper uses 512.
        norm: any name that Detectron2's ``get_norm`` knows, "" for none.
        dropout: probability with which a channel of the output is dropped in training. The
            published code uses 0.05.
    """

    def __init__(
        self,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        *,
        norm: str = "SyncBN",
        dropout: float = 0.05,
    ):
        super().__init__()
        self.out_channels = out_channels
        self.phi = ConvNormReLU(in_channels, key_channels, norm=norm)
        self.psi = ConvNormReLU(in_channels, key_channels, norm=norm)
        self.value = nn.Conv2d(in_channels, key_channels, kernel_size=1, bias=False)
        self.output = nn.Conv2d(key_channels, out_channels, kernel_size=1, bias=False)
        nn.init.zeros_(self.output.weight)
        self.g = ConvNormReLU(in_channels + out_channels, out_channels, norm=norm)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """
        Args:
            x: pixel representations [N, C, h, w]
            m: not used

        Returns:
            z: augmented representations [N, O, h, w]
        """
        attended = attend(*(pixel_tokens(t(x)) for t in (self.phi, self.psi, self.value)))
        weight, bias, norm = self.g.linear_part()
        weight_x, weight_y = weight.flatten(1).split([x.shape[1], self.out_channels], dim=1)
        weight_y = torch.mm(weight_y, self.output.weight.flatten(1))
        z = pixelwise(weight_x, x.flatten(2), bias)
        z = pixelwise(weight_y, attended.transpose(1, 2), add_to=z).unflatten(2, x.shape[2:])
        return self.dropout(apply_norm(norm, z).relu_())
