"""The pyramid pooling module, and PPM-OCR, compared with their definitions."""

import math

import torch
from torch import Tensor, nn

from ocr_panoptic.layers import PPM, PPMOCR
from support import equations
from support.battery import SchemeBattery


def pooling(size: int, length: int) -> Tensor:
    """Return weights [size, length] for the mean of each cell, with its ends rounded outwards."""
    matrix = torch.zeros(size, length, dtype=torch.float64)
    for i in range(size):
        start, end = i * length // size, math.ceil((i + 1) * length / size)
        matrix[i, start:end] = 1 / (end - start)
    return matrix


def upsampling(length: int, size: int) -> Tensor:
    """Return weights [length, size] for linear interpolation between the centres of the cells."""
    matrix = torch.zeros(length, size, dtype=torch.float64)
    for i in range(length):
        position = min(max((i + 0.5) * size / length - 0.5, 0), size - 1)
        low = min(int(position), size - 1)
        high = min(low + 1, size - 1)
        matrix[i, low] += 1 - (position - low)
        matrix[i, high] += position - low
    return matrix


def pyramid(layer: nn.Module, x: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    """Return the pooled, transformed and upsampled maps [N, B, h, w] of each size."""
    h, w = x.shape[2:]
    maps = []
    for s, transform in zip(sizes, layer.transforms, strict=True):
        cells = torch.einsum("ah,bw,nchw->ncab", pooling(s, h), pooling(s, w), x)
        cells = equations.conv_norm_relu(transform, cells)
        maps.append(torch.einsum("ha,wb,ncab->nchw", upsampling(h, s), upsampling(w, s), cells))
    return maps


class TestPPM(SchemeBattery):
    scheme = PPM
    arguments = dict(in_channels=8, out_channels=11, sizes=(1, 2, 3), norm="BN")
    sizes = ({"h": 5, "w": 7}, {"h": 2, "w": 4})  # the second has fewer pixels than cells
    # Four 1x1 convolutions 2048 -> 512 and a 3x3 4096 -> 512, each with a norm.
    published = ({"in_channels": 2048}, 4 * 2048 * 512 + 9 * 4096 * 512 + 5 * 2 * 512, 0.1)

    def reference(self, layer, x, m):
        maps = [x, *pyramid(layer, x, (1, 2, 3))]
        return equations.conv_norm_relu(layer.g, torch.cat(maps, dim=1))


class TestPPMOCR(SchemeBattery):
    scheme = PPMOCR
    arguments = dict(in_channels=27, key_channels=10, out_channels=19, norm="BN")
    variants = ({}, {"transform_convs": 1, "scale_relation": False})
    sizes = ({"h": 7, "w": 6}, {"h": 2, "w": 4})  # the second has fewer pixels than cells
    # OCR's phi, psi, delta and rho; four 1x1 convolutions 512 -> 128; g of x, y and these; norms.
    published = (
        {},
        2 * (512 * 256 + 256 * 256)
        + 2 * 512 * 256
        + 4 * 512 * 128
        + (2 * 512 + 4 * 128) * 512
        + 2 * (4 * 256 + 256 + 512 + 4 * 128 + 512),
        0.05,
    )

    def inputs(self, **size):
        return equations.inputs(**{"c": 27, **size})

    def reference(self, layer, x, m, transform_convs=2, scale_relation=True):
        f = equations.gather(x, m)
        w = equations.relation(layer, x, f, scale_relation)
        y = equations.context(layer, w, f, x.shape[2:])
        maps = [x, y, *pyramid(layer, x, (1, 2, 3, 6))]
        return equations.conv_norm_relu(layer.g, torch.cat(maps, dim=1))

    def test_bands_of_rows_equal_the_whole(self, monkeypatch):
        layer = self.make().eval()
        x, m = self.inputs(h=7, w=6)
        monkeypatch.setattr("ocr_panoptic.layers.ocr.PIXELS_OF_BAND", 12)
        with torch.no_grad():
            bands = list(layer.in_bands(x, m))
            assert [band.shape[2] for band in bands] == [2, 2, 2, 1]
            torch.testing.assert_close(torch.cat(bands, dim=2), layer(x, m))
