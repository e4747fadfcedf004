"""
The units of a Transformer over sequences of tokens, used by the segmentation transformers.

Shape shorthand: N images, L tokens, M tokens attended to, D key channels, C token channels.
"""

import torch.nn.functional as F
from torch import Tensor, nn


def pixel_tokens(x: Tensor) -> Tensor:
    """Return x [N, C, h, w] as a contiguous sequence of tokens [N, h * w, C]."""
    return x.flatten(2).transpose(1, 2).contiguous()


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """
    Return scaled dot-product attention with one head.

    out_i = sum_j softmax_j(q_i^T k_j / sqrt(D)) v_j: Eq. "attention" in the section "Segmentation
    Transformer" of :paper:`OCR`. Queries [N, L, D], keys [N, M, D] and values [N, M, C] give
    [N, L, C]. If PyTorch has a fused kernel for the device and dtype (on CPUs only if C = D), the
    memory does not grow with L * M.
    """
    # The fused kernels need a dimension for heads.
    queries, keys, values = (t.unsqueeze(1) for t in (queries, keys, values))
    return F.scaled_dot_product_attention(queries, keys, values).squeeze(1)


class SelfAttentionUnit(nn.Module):
    """
    Residual self-attention of tokens t: t + W_o attend(W_q n, W_k n, W_v n) with n = LayerNorm(t).

    Queries, keys and values have D channels.
    """

    def __init__(self, channels: int, key_channels: int):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.query = nn.Linear(channels, key_channels, bias=False)
        self.key = nn.Linear(channels, key_channels, bias=False)
        self.value = nn.Linear(channels, key_channels, bias=False)
        self.output = nn.Linear(key_channels, channels, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the updated tokens, [N, L, C]."""
        n = self.norm(tokens)
        return tokens + self.output(attend(self.query(n), self.key(n), self.value(n)))


class TransformerBlock(nn.Module):
    """
    Self-attention and a feed-forward network: the Vision Transformer's block with one head.

    The feed-forward network has 4 C hidden channels.
    """

    def __init__(self, channels: int, key_channels: int):
        super().__init__()
        self.attention = SelfAttentionUnit(channels, key_channels)
        self.ffn = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the updated tokens, [N, L, C]."""
        tokens = self.attention(tokens)
        return tokens + self.ffn(tokens)
