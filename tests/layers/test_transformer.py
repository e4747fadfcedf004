"""Attention worked out by hand; the schemes' batteries compare the units with the equations."""

import math

import pytest
import torch

from ocr_panoptic.layers.transformer import attend


def tokens_of(n: int = 2, length: int = 7, channels: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, length, channels, generator=generator, dtype=torch.float64)


def test_attention_hand_worked():
    """Query 2, keys ln 3 / 2 and 0, values 8 and 4: the weights are 3/4 and 1/4."""
    queries, values = torch.tensor([[[2.0]]]), torch.tensor([[[8.0], [4.0]]])
    keys = torch.tensor([[[math.log(3) / 2], [0.0]]])
    assert attend(queries, keys, values).item() == pytest.approx(7.0)


def test_joint_attention_combines_self_and_cross_attention():
    """
    Attention over two kinds of tokens is a weighted mean of the attention to each kind.

    The weights are the normalisers Z of the attention to each kind.
    """
    q, k, v = tokens_of(length=9), tokens_of(length=9).flip(1), tokens_of(length=9).flip(2)
    joint = attend(q, k, v)
    a, b = slice(0, 3), slice(3, 9)
    for kind in (a, b):
        parts = [attend(q[:, kind], k[:, other], v[:, other]) for other in (a, b)]
        z = [
            (torch.einsum("nld,nmd->nlm", q[:, kind], k[:, other]) / math.sqrt(6)).exp().sum(2)
            for other in (a, b)
        ]
        expected = sum(part * weight[..., None] for part, weight in zip(parts, z))
        expected = expected / sum(z)[..., None]
        torch.testing.assert_close(joint[:, kind], expected, rtol=0, atol=1e-12)
