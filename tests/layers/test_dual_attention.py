"""The attentions of DANet and its head, compared with their equations."""

import math

import pytest
import torch
from torch import Tensor, nn

from ocr_panoptic.layers import ChannelAttention, DualAttention, PositionAttention
from support import equations
from support.battery import SchemeBattery


def position_equation(module: PositionAttention, x: Tensor) -> Tensor:
    q, k, v = (
        equations.linear(conv, x).flatten(2) for conv in (module.query, module.key, module.value)
    )
    weights = equations.softmax(torch.einsum("ndp,ndq->npq", q, k), 2)
    return x + module.gamma * torch.einsum("npq,ncq->ncp", weights, v).view_as(x)


def channel_equation(module: ChannelAttention, x: Tensor) -> Tensor:
    """Return channel attention with the maximum subtracted, as in the official code."""
    energy = torch.einsum("ncp,ndp->ncd", x.flatten(2), x.flatten(2))
    weights = equations.softmax(energy.amax(dim=2, keepdim=True) - energy, 2)
    return x + module.gamma * torch.einsum("ncd,ndp->ncp", weights, x.flatten(2)).view_as(x)


class TestDualAttention(SchemeBattery):
    scheme = DualAttention
    arguments = dict(in_channels=8, channels=16, norm="BN")
    # The key's bias adds the same value to all energies of a pixel.
    without_gradient = ("position.1.key.bias",)
    # Two branches of 3x3 2048 -> 512 and 3x3 512 -> 512; queries, keys 64 and values 512; norms.
    published = (
        {"in_channels": 2048},
        2 * 9 * (2048 + 512) * 512 + 2 * (512 * 64 + 64) + 512 * 512 + 512 + 2 + 4 * 2 * 512,
        0.1,
    )

    def reference(self, layer, x, m):
        branches = []
        for branch, equation in (
            (layer.position, position_equation),
            (layer.channel, channel_equation),
        ):
            reduction, attention, smoothing = branch
            y = equation(attention, equations.conv_norm_relu(reduction, x))
            branches.append(equations.conv_norm_relu(smoothing, y))
        return branches[0] + branches[1]


@pytest.mark.parametrize("module", [PositionAttention(16), ChannelAttention()])
def test_attentions_start_as_identity(module):
    x = torch.randn(2, 16, 4, 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(module(x), x)
        nn.init.ones_(module.gamma)
        assert not torch.allclose(module(x), x)


@pytest.mark.parametrize("channels", [4, 20])
def test_queries_have_an_eighth_of_the_channels(channels):
    with pytest.raises(ValueError, match=f"CHANNELS is {channels};.* a multiple of 8"):
        PositionAttention(channels)


def test_channel_attention_hand_worked():
    """
    Channels (1, 0) and (0, 2) have the products 1, 0, 4.

    The first channel has weight 1 / (1 + e) for itself, the second e^-4 / (1 + e^-4). The other
    channel has the rest.
    """
    module = ChannelAttention()
    nn.init.ones_(module.gamma)
    y = module(torch.tensor([[1.0, 0.0], [0.0, 2.0]]).view(1, 2, 1, 2)).flatten()
    a, b = 1 / (1 + math.e), 1 / (1 + math.exp(4))
    assert y.tolist() == pytest.approx([1 + a, 2 * (1 - a), 1 - b, 2 + 2 * b], abs=1e-6)
