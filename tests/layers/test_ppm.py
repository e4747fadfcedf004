"""The pyramid pooling module, against its definition."""

import math

import pytest
import torch
from torch import Tensor, nn

from ocr_panoptic.layers import PPM
from support import equations
from support.battery import SchemeBattery


def pooling(size: int, length: int) -> Tensor:
    """[size, length]: the mean of each cell, which goes from floor to ceil of its share."""
    matrix = torch.zeros(size, length, dtype=torch.float64)
    for i in range(size):
        start, end = i * length // size, math.ceil((i + 1) * length / size)
        matrix[i, start:end] = 1 / (end - start)
    return matrix


def upsampling(length: int, size: int) -> Tensor:
    """[length, size]: linear interpolation between the centres of the cells, with the outer cells
    continued."""
    matrix = torch.zeros(length, size, dtype=torch.float64)
    for i in range(length):
        position = min(max((i + 0.5) * size / length - 0.5, 0), size - 1)
        low = min(int(position), size - 1)
        high = min(low + 1, size - 1)
        matrix[i, low] += 1 - (position - low)
        matrix[i, high] += position - low
    return matrix


def pyramid(layer: nn.Module, x: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    """The pooled, transformed and upsampled maps [N, B, h, w] of each size."""
    h, w = x.shape[2:]
    maps = []
    for s, transform in zip(sizes, layer.transforms, strict=True):
        cells = torch.einsum("ah,bw,nchw->ncab", pooling(s, h), pooling(s, w), x)
        cells = equations.conv_norm_relu(transform, cells)
        maps.append(torch.einsum("ha,wb,ncab->nchw", upsampling(h, s), upsampling(w, s), cells))
    return maps


class TestPPM(SchemeBattery):
    scheme = PPM
    arguments = dict(in_channels=8, out_channels=16, sizes=(1, 2, 3), norm="BN")
    sizes = ({"h": 5, "w": 7}, {"h": 2, "w": 4})  # also fewer pixels than cells
    # Four 1x1 convolutions 2048 -> 512 and a 3x3 4096 -> 512, each with a norm.
    published = (
        {"in_channels": 2048},
        4 * 2048 * 512 + 9 * 4096 * 512 + 5 * 2 * 512,
        0.1,
    )

    def reference(self, layer, x, m):
        maps = [x, *pyramid(layer, x, (1, 2, 3))]
        return equations.conv_norm_relu(layer.g, torch.cat(maps, dim=1))

    def test_constant_maps(self):
        """The pyramid of a constant map is constant, and so is the output, but at the border, where
        the 3x3 convolution sees zeros."""
        layer = self.make(sizes=(1, 2, 3, 6)).eval()
        x = equations.inputs(h=1, w=1)[0].expand(-1, -1, 8, 9)
        for cells in layer.pyramid(x):
            torch.testing.assert_close(cells, cells[:, :, :1, :1].expand_as(cells))
        z = layer(x, None)
        inside = z[:, :, 1:-1, 1:-1]
        torch.testing.assert_close(inside, inside[:, :, :1, :1].expand_as(inside))
        assert not torch.allclose(z[:, :, 0, 4], z[:, :, 4, 4])

    @pytest.mark.parametrize("cells, rows", [(1, 12), (2, 10), (4, 5)])
    def test_how_far_a_pixel_of_the_corner_reaches(self, cells, rows):
        """The weight of its cell falls to 0 at the next cell's centre, which is at row 8.5 for
        cells of 6 rows and at row 4 for cells of 3; the 3x3 convolution adds a row."""
        layer = self.make(sizes=(cells,)).eval()
        with torch.no_grad():
            layer.transforms[0].norm.bias += 5  # no ReLU at work
            layer.g.norm.bias += 50
            layer.g.weight[:, :8] = 0  # the pooled branch alone
        x = equations.inputs(n=1, h=12, w=12)[0]
        changed = x.clone()
        changed[0, :, 0, 0] += 1
        difference = (layer(changed, None) - layer(x, None)).abs().sum(dim=(0, 1, 3))
        assert (difference > 1e-12).nonzero().flatten().tolist() == list(range(rows))
