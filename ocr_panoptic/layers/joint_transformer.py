"""
The alternative of the segmentation transformer: one joint attention over categories and pixels
(second figure of the section "Segmentation Transformer" of :paper:`OCR`).

Shape shorthand: N images, K categories, h w feature size, P = h * w pixels, C channels.
"""

import torch
from torch import Tensor, nn

from ocr_panoptic.errors import UserError

from .context_scheme import ContextScheme
from .conv import as_map
from .transformer import TransformerBlock, pixel_tokens


class JointTransformer(ContextScheme):
    """
    Learnt category queries and pixels form one sequence of K + P tokens. A block conducts the two
    cross-attentions and the two self-attentions of :class:`SegmentationTransformer` at once, which
    is a single self-attention, and is repeated. The pixels' tokens are the output.

    The coarse logits have no part in it. The paper leaves the block open; it is the Vision
    Transformer's here (:class:`TransformerBlock`), with a layer norm after the last one. It has
    no ReLU, and so no slope of one: its feed-forward networks have GELU.

    Args:
        num_classes: K.
        channels: C, of input and output.
        key_channels: of queries, keys and values.
        num_blocks: number of blocks.
        dropout: of :class:`.ContextScheme`.

    Raises:
        ValueError: if there is no block.
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
        if num_blocks < 1:
            raise UserError(f"num_blocks is {num_blocks}; the joint transformer needs at least 1")
        super().__init__(channels, dropout=dropout)
        self.category_queries = nn.Parameter(torch.randn(num_classes, channels))
        blocks = (TransformerBlock(channels, key_channels) for _ in range(num_blocks))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """Augment x, without m; see :meth:`.ContextScheme.forward`."""
        queries = self.category_queries.to(x.dtype).expand(x.shape[0], -1, -1)
        tokens = torch.cat([queries, pixel_tokens(x)], dim=1)  # [N, K + P, C]
        pixels = self.norm(self.blocks(tokens)[:, queries.shape[1] :])
        return self.dropout(as_map(pixels.transpose(1, 2), x.shape[2:]))
