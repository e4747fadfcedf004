"""
Criss-cross attention (CCNet) by matrix products.

CCNet is one of the relational schemes that :paper:`OCR` compares with.

Shape shorthand: N images, h w feature size, I channels of the features, C channels of the attention
and of the output, D channels of queries and keys.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .context_scheme import ContextScheme
from .dual_attention import PositionAttention


def attend_criss_cross(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """
    Return [N, C, h, w], where each pixel attends to the w + h - 1 pixels of its row and column.

    y_i = sum_j softmax_j(q_i^T k_j) v_j, not scaled, with one softmax over row and column.
    Queries and keys are [N, D, h, w], values [N, C, h, w].
    """
    h, w = queries.shape[2:]
    # A row is a sequence of w pixels; a column is a row of the transposed maps.
    # In float32 or better: products that are not scaled leave the range of float16.
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
    """Return [N, h, C, w], contiguous: the products are then eight times as fast on a CPU."""
    return t.transpose(1, 2).contiguous()


class CrissCrossAttention(PositionAttention):
    """:class:`.PositionAttention` that sees only the pixels of the same row and column."""

    attend = staticmethod(attend_criss_cross)


class CrissCross(ContextScheme):
    """
    One criss-cross attention, applied several times between two 3x3 convolutions.

    The passes share their weights; two passes connect each pixel with all others. g, a 3x3
    convolution, fuses the result with the features. The defaults are those of the official head.

    Args:
        in_channels, channels: I and C. In the official head C is a quarter of I.
        recurrences: passes of the attention.
        dropout, options: see :class:`.ContextScheme`.
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
        """Augment the backbone's features x [N, I, h, w]; m is ignored."""
        y = self.reduction(x)
        for _ in range(self.recurrences):
            y = self.attention(y)
        return self.dropout(self.g(x, self.smoothing(y)))
