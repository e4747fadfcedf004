"""
Criss-cross attention (CCNet), computed by matrix products.

CCNet is one of the relational schemes that :paper:`OCR` is compared with.

Shape shorthand: N images, h w feature size, I feature channels, C channels of the attention and of
the output, D channels of queries and keys.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .context_scheme import ContextScheme
from .dual_attention import PositionAttention


def attend_criss_cross(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """
    Return y [N, C, h, w], in which each pixel attends to the pixels of its row and column.

    y_i = sum_j softmax_j(q_i^T k_j) v_j, with unscaled products and one softmax over all w + h - 1
    pixels j. Queries and keys are [N, D, h, w], values [N, C, h, w].
    """
    h, w = queries.shape[2:]
    # A row is a sequence of w pixels; a column is a row of the transposed maps.
    # Use float32 or better: unscaled products overflow float16.
    dtype = torch.promote_types(queries.dtype, torch.float32)
    with torch.autocast(device_type=queries.device.type, enabled=False):
        queries, keys = queries.to(dtype), keys.to(dtype)
        rows = _rows(queries).mT @ _rows(keys)  # [N, h, w, w]
        columns = _rows(queries.mT).mT @ _rows(keys.mT)  # [N, w, h, h]
    # A pixel lies both in its row and in its column, but counts once.
    itself = torch.eye(h, dtype=torch.bool, device=columns.device)
    columns = columns.masked_fill(itself, float("-inf"))
    energy = torch.cat([rows, columns.transpose(1, 2)], dim=3)  # [N, h, w, w + h]
    weights = energy.softmax(dim=3).to(values.dtype)
    row_weights, column_weights = weights.split([w, h], dim=3)
    y = _rows(values) @ row_weights.mT  # [N, h, C, w]
    z = _rows(values.mT) @ column_weights.transpose(1, 2).mT  # [N, w, C, h]
    return y.transpose(1, 2) + z.permute(0, 2, 3, 1)


def _rows(t: Tensor) -> Tensor:
    """Return t [N, C, h, w] as a contiguous tensor [N, h, C, w]."""
    # Products of contiguous tensors are 8 times as fast on a CPU.
    return t.transpose(1, 2).contiguous()


class CrissCrossAttention(PositionAttention):
    """A :class:`.PositionAttention` in which each pixel attends only to its row and column."""

    attend = staticmethod(attend_criss_cross)


class CrissCross(ContextScheme):
    """
    CCNet's head: criss-cross attention, applied several times between two 3x3 convolutions.

    All passes share their weights; two passes connect each pixel to all others. Another 3x3
    convolution fuses the result with the features. The defaults match the official head.

    Args:
        in_channels, channels: numbers of input and attention channels (I, C); official: C = I / 4.
        recurrences: number of passes of the attention.
    """

    takes_features = True

    def __init__(
        self,
        in_channels: int,
        channels: int = 512,
        *,
        recurrences: int = 2,
        dropout: float = 0.1,
        **options: Any,
    ):
        super().__init__(channels, dropout=dropout, **options)
        self.recurrences = recurrences
        conv = partial(self.conv_norm_relu, kernel_size=3)
        self.reduction = conv(in_channels, channels)
        self.attention = CrissCrossAttention(channels)
        self.smoothing = conv(channels, channels)
        self.g = conv(in_channels + channels, channels)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Return the augmented map z [N, C, h, w] of the features x [N, I, h, w]; m is ignored."""
        y = self.reduction(x)
        for _ in range(self.recurrences):
            y = self.attention(y)
        return self.dropout(self.g(x, self.smoothing(y)))
