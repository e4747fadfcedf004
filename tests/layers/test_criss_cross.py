"""Criss-cross attention, compared with a loop over pixels."""

import pytest
import torch
from torch import Tensor

from ocr_panoptic.layers import CrissCross
from ocr_panoptic.layers.criss_cross import attend_criss_cross
from support import equations
from support.battery import SchemeBattery


def loop(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the attention over row and column of each pixel, the pixel itself once."""
    h, w = values.shape[2:]
    pixels = []
    for i in range(h):
        for j in range(w):
            cross = [(i, b) for b in range(w)] + [(a, j) for a in range(h) if a != i]
            k = torch.stack([keys[:, :, a, b] for a, b in cross], dim=2)
            v = torch.stack([values[:, :, a, b] for a, b in cross], dim=2)
            weights = equations.softmax(torch.einsum("nd,ndq->nq", queries[:, :, i, j], k), 1)
            pixels.append(torch.einsum("nq,ncq->nc", weights, v))
    return torch.stack(pixels, dim=2).unflatten(2, (h, w))


class TestCrissCross(SchemeBattery):
    scheme = CrissCross
    arguments = dict(in_channels=8, channels=16, norm="BN")
    variants = ({}, {"recurrences": 1})
    sizes = ({}, {"h": 1, "w": 3}, {"h": 3, "w": 1})
    # The key's bias adds the same value to all energies of a pixel.
    without_gradient = ("attention.key.bias",)
    # 3x3 2048 -> 512, 512 -> 512 and 2560 -> 512; queries and keys 64, values 512, shared; norms.
    published = (
        {"in_channels": 2048},
        9 * 512 * (2048 + 512 + 2560) + 2 * (512 * 64 + 64) + 512 * 512 + 512 + 1 + 3 * 2 * 512,
        0.1,
    )

    def reference(self, layer, x, m, recurrences=2):
        attention = layer.attention
        convolutions = attention.query, attention.key, attention.value
        y = equations.conv_norm_relu(layer.reduction, x)
        for _ in range(recurrences):
            y = y + attention.gamma * loop(*(equations.linear(conv, y) for conv in convolutions))
        y = equations.conv_norm_relu(layer.smoothing, y)
        return equations.conv_norm_relu(layer.g, torch.cat([x, y], dim=1))


def test_mean_of_the_cross_hand_worked():
    """Equal energies give the mean of row and column, the pixel once, for the numbers 0 to 5."""
    zeros, values = torch.zeros(1, 2, 2, 3), torch.arange(6.0).view(1, 1, 2, 3)
    y = attend_criss_cross(zeros, zeros, values)
    sums = [3 + 3, 3 + 4, 3 + 5, 12 + 0, 12 + 1, 12 + 2]  # 0 + 1 + 2 = 3 and 3 + 4 + 5 = 12
    assert y.flatten().tolist() == pytest.approx([s / 4 for s in sums])
