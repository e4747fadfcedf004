"""The pyramid pooling module, against its definition."""

import math

import equations
import pytest
import torch
from torch import Tensor

from ocr_panoptic.layers import PPM


def make_layer(sizes: tuple[int, ...] = (1, 2, 3), norm: str = "BN") -> PPM:
    torch.manual_seed(1)
    return equations.randomise(PPM(6, 4, sizes=sizes, norm=norm, dropout=0.0))


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


def definition(layer: PPM, x: Tensor) -> Tensor:
    h, w = x.shape[2:]
    maps = [x]
    for s, transform in zip(layer.sizes, layer.transforms):
        cells = torch.einsum("ah,bw,nchw->ncab", pooling(s, h), pooling(s, w), x)
        cells = equations.conv_norm_relu(transform, cells)
        maps.append(torch.einsum("ha,wb,ncab->nchw", upsampling(h, s), upsampling(w, s), cells))
    return equations.conv_norm_relu(layer.g, torch.cat(maps, dim=1))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("size", [(5, 7), (2, 4)])  # also fewer pixels than cells
def test_equals_the_definition(training, size):
    layer = make_layer().train(training)
    x, m = equations.inputs(h=size[0], w=size[1])
    equations.assert_equal_with_gradients(layer, lambda x, m: definition(layer, x), x, m)


def test_constant_maps():
    """The pyramid of a constant map is constant, and so is the output, but at the border, where
    the 3x3 convolution sees zeros."""
    layer = make_layer((1, 2, 3, 6)).eval()
    x = equations.inputs(h=1, w=1)[0].expand(-1, -1, 8, 9)
    for cells in layer.pyramid(x):
        torch.testing.assert_close(cells, cells[:, :, :1, :1].expand_as(cells))
    z = layer(x, None)
    inside = z[:, :, 1:-1, 1:-1]
    torch.testing.assert_close(inside, inside[:, :, :1, :1].expand_as(inside))
    assert not torch.allclose(z[:, :, 0, 4], z[:, :, 4, 4])


@pytest.mark.parametrize("size, rows", [(1, 12), (2, 10), (4, 5)], ids=["1 cell", "2 x 2", "4 x 4"])
def test_how_far_a_pixel_of_the_corner_reaches(size, rows):
    """The weight of its cell falls to 0 at the next cell's centre, which is at row 8.5 for cells
    of 6 rows and at row 4 for cells of 3; the 3x3 convolution adds a row."""
    layer = make_layer((size,)).eval()
    with torch.no_grad():
        layer.transforms[0].norm.bias += 5  # no ReLU at work
        layer.g.norm.bias += 50
        layer.g.weight[:, :6] = 0  # the pooled branch alone
    x = equations.inputs(n=1, h=12, w=12)[0]
    changed = x.clone()
    changed[0, :, 0, 0] += 1
    difference = (layer(changed, None) - layer(x, None)).abs().sum(dim=(0, 1, 3))
    assert (difference > 1e-12).nonzero().flatten().tolist() == list(range(rows))


def test_one_image_in_training():
    """The pooled image is one value by channel, which has no variance: its norm uses the running
    statistics."""
    layer = make_layer().train()
    before = layer.transforms[0].norm.running_mean.clone()
    z = layer(*equations.inputs(n=1))
    assert z.isfinite().all() and torch.equal(layer.transforms[0].norm.running_mean, before)


def test_parameters_of_the_published_module():
    """Four 1x1 convolutions 2048 -> 512 and a 3x3 4096 -> 512, each with a norm; hand-worked."""
    count = sum(p.numel() for p in PPM(2048).parameters())
    assert count == 4 * 2048 * 512 + 9 * 4096 * 512 + 5 * 2 * 512
