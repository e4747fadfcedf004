"""
Dual attention (DANet), one of the relational schemes that :paper:`OCR` is compared with.

Shape shorthand: N images, h w feature size, P = h * w pixels, I feature channels, C channels of the
attentions and of the output, D channels of queries and keys.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocr_panoptic.errors import UserError

from .context_scheme import ContextScheme
from .conv import as_map, pixelwise
from .transformer import pixel_tokens


def attend_everywhere(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """
    Return y [N, C, h, w], in which each pixel attends to all pixels.

    y_i = sum_j softmax_j(q_i^T k_j) v_j, with unscaled products. Queries and keys are
    [N, D, h, w], values [N, C, h, w]; C must be a multiple of D.
    """
    # Kernels whose memory does not grow with P^2 need values with as many channels as the keys. So
    # the values are split into C / D heads, which share queries and keys. With C = 8 D, this takes
    # 1.8 times the operations of a single head, and 1/20 of its memory at 128 x 128 pixels.
    d = keys.shape[1]
    heads = values.shape[1] // d
    queries, keys = (pixel_tokens(t)[:, None].expand(-1, heads, -1, -1) for t in (queries, keys))
    split = values.flatten(2).unflatten(1, (heads, d)).transpose(2, 3).contiguous()
    y = F.scaled_dot_product_attention(queries, keys, split, scale=1.0)  # [N, heads, P, D]
    return y.transpose(2, 3).reshape(values.shape)


class PositionAttention(nn.Module):
    """
    Attention among pixels: x + gamma attend(query(x), key(x), value(x)); gamma starts at zero.

    The number of channels, C, must be a multiple of 8; queries and keys have C / 8 channels.
    """

    attend = staticmethod(attend_everywhere)

    def __init__(self, channels: int = 512):
        super().__init__()
        if channels < 8 or channels % 8:
            raise UserError(f"MODEL.OCR.CHANNELS is {channels}; attention needs a multiple of 8")
        self.query = nn.Conv2d(channels, channels // 8, kernel_size=1)
        self.key = nn.Conv2d(channels, channels // 8, kernel_size=1)
        self.value = nn.Conv2d(channels, channels, kernel_size=1)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [N, C, h, w] plus gamma times the attended values."""
        return x + self.gamma * self.attend(self.query(x), self.key(x), self.value(x))


class ChannelAttention(nn.Module):
    """
    Attention among channels: x_c + gamma sum_d softmax_d(-x_c^T x_d) x_d; gamma starts at zero.

    As in DANet's code, the products are negated.
    """

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return x [N, C, h, w] plus gamma times the attended values."""
        # The official code subtracts the products from their maximum, which the softmax cancels.
        # Use float32 or better: a sum of P products overflows float16.
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(device_type=x.device.type, enabled=False):
            channels = x.flatten(2).to(dtype)
            weights = torch.bmm(channels, channels.transpose(1, 2)).neg().softmax(dim=2)
        y = as_map(pixelwise(weights.to(x.dtype), x.flatten(2)), x.shape[2:])
        return x + self.gamma * y


class DualAttention(ContextScheme):
    """
    DANet's head: the sum of a branch with position attention and a branch with channel attention.

    Each branch is a 3x3 convolution, the attention, and a second 3x3 convolution. The official head
    has C = I / 4 and dropout 0.1.
    """

    takes_features = True

    def __init__(
        self, in_channels: int, channels: int = 512, *, dropout: float = 0.1, **options: Any
    ):
        super().__init__(channels, dropout=dropout, **options)
        conv = partial(self.conv_norm_relu, kernel_size=3)
        self.position, self.channel = (
            nn.Sequential(conv(in_channels, channels), attention, conv(channels, channels))
            for attention in (PositionAttention(channels), ChannelAttention())
        )

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Return the augmented map z [N, C, h, w] of the features x [N, I, h, w]; m is ignored."""
        return self.dropout(self.position(x) + self.channel(x))
