"""
The segmentation transformer: OCR expressed as a Transformer.

See "Segmentation Transformer: Rephrasing the OCR Method" in :paper:`OCR`.

Shape shorthand: N images, K categories, h w feature size, P = h * w pixels, C channels of the pixel
representations x, D key channels, O output channels.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .context_scheme import ContextScheme
from .conv import as_map
from .transformer import SelfAttentionUnit, TransformerBlock, attend, pixel_tokens


class SegmentationTransformer(ContextScheme):
    """
    OCR as a Transformer (first figure of the paper's Transformer section), with these parts:

    - optional self-attention among the pixels (encoder) and among the categories (decoder);
    - decoder cross-attention: K learnt category queries attend to the pixels, whose
      representations are both keys and values. The attention's logits are the soft object regions,
      and its output is the object region representations f;
    - encoder cross-attention and a feed-forward network: the pixels attend to f;
    - the fusion g([x; y]) instead of a residual connection.

    Without self-attention, this scheme can equal :class:`OCR` with ``transform_convs=1`` and
    ``scale_relation=True``. OCR's regions are then m = A x + b with a linear classifier A, and the
    category queries are sqrt(C) A. ``query``, ``key``, ``value``, ``ffn`` and ``fuse`` are OCR's
    phi, psi, delta, rho and g.

    The coarse logits are not used, so the coarse loss is only an auxiliary loss.

    Args:
        key_channels: number of channels (D) of queries, keys and values, except in the decoder
            cross-attention (C channels).
        encoder_self_attention: whether the pixels attend to each other. If PyTorch has no fused
            kernel for the device and dtype, this takes memory that grows with P^2.
        decoder_self_attention: whether and where the categories attend to each other: "none",
            "before" the cross-attention (mixes the queries) or "after" the cross-attention (mixes
            the region representations).
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 512,
        key_channels: int = 256,
        out_channels: int = 512,
        *,
        encoder_self_attention: bool = False,
        decoder_self_attention: str = "none",
        **options: Any,
    ):
        super().__init__(out_channels, **options)

        def self_attention(wanted: bool) -> nn.Module:
            return SelfAttentionUnit(in_channels, key_channels) if wanted else nn.Identity()

        self.category_queries = nn.Parameter(torch.randn(num_classes, in_channels))
        self.encoder_self_attention = self_attention(encoder_self_attention)
        self.queries_self_attention = self_attention(decoder_self_attention == "before")
        self.regions_self_attention = self_attention(decoder_self_attention == "after")
        self.query = self.conv_norm_relu(in_channels, key_channels)
        self.key = self.conv_norm_relu(in_channels, key_channels)
        self.value = self.conv_norm_relu(in_channels, key_channels)
        self.ffn = self.conv_norm_relu(key_channels, out_channels)
        self.fuse = self.conv_norm_relu(in_channels + out_channels, out_channels)

    def decode(self, x: Tensor) -> Tensor:
        """
        Return the object region representations [N, C, K, 1] of pixel representations [N, C, h, w].

        The cross-attention is computed in float32 or better, under autocast too, because softmax
        weights over many pixels are too small for float16.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        queries = self.queries_self_attention(self.category_queries[None])
        with torch.autocast(device_type=x.device.type, enabled=False):
            pixels = pixel_tokens(x).to(dtype)
            f = attend(queries.to(dtype).expand(x.shape[0], -1, -1), pixels, pixels)
        f = self.regions_self_attention(f.to(x.dtype))  # [N, K, C]
        return f.transpose(1, 2).unsqueeze(3)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Return the augmented map z [N, O, h, w] of x [N, C, h, w]; m is ignored."""
        size = x.shape[2:]
        x = as_map(self.encoder_self_attention(pixel_tokens(x)).transpose(1, 2), size)
        f = self.decode(x)
        y = attend(*(pixel_tokens(t) for t in (self.query(x), self.key(f), self.value(f))))
        return self.dropout(self.fuse(x, self.ffn(as_map(y.transpose(1, 2), size))))


class JointTransformer(ContextScheme):
    """
    A Transformer over queries and pixels (second figure of the paper's Transformer section).

    K learnt category queries and P pixels form a sequence of K + P tokens. The self-attention of a
    block replaces the two cross-attentions and the two self-attentions of
    :class:`SegmentationTransformer`. The output is the pixels' tokens after the last block. The
    coarse logits are not used.

    The paper does not define the blocks. Here, they are the Vision Transformer's blocks
    (:class:`TransformerBlock`), and a layer norm follows the last block. The blocks have GELU
    instead of ReLU, so there is no ``negative_slope``.
    """

    def __init__(
        self,
        num_classes: int,
        channels: int = 512,
        key_channels: int = 256,
        *,
        num_blocks: int = 2,
        dropout: float = 0.05,
    ):
        super().__init__(channels, dropout=dropout)
        self.category_queries = nn.Parameter(torch.randn(num_classes, channels))
        blocks = (TransformerBlock(channels, key_channels) for _ in range(num_blocks))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Return the augmented map z [N, C, h, w] of x [N, C, h, w]; m is ignored."""
        queries = self.category_queries.to(x.dtype).expand(x.shape[0], -1, -1)
        tokens = torch.cat([queries, pixel_tokens(x)], dim=1)  # [N, K + P, C]
        pixels = self.norm(self.blocks(tokens)[:, queries.shape[1] :])
        return self.dropout(as_map(pixels.transpose(1, 2), x.shape[2:]))
