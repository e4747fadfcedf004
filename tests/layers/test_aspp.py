"""Atrous spatial pyramid pooling, and ASP-OCR, compared with their definitions."""

import torch

from ocr_panoptic.layers import ASPOCR, ASPP
from support import equations
from support.battery import SchemeBattery


class TestASPP(SchemeBattery):
    scheme = ASPP
    arguments = dict(in_channels=8, channels=5, out_channels=11, dilations=(1, 2, 3), norm="BN")
    sizes = ({"n": 3, "h": 7, "w": 6},)
    # Branches have 256 channels: two 1x1 and three 3x3 from 2048, fused by a 1x1; norms.
    published = ({"in_channels": 2048}, (2 + 3 * 9) * 2048 * 256 + 5 * 256 * 256 + 6 * 2 * 256, 0.1)

    def reference(self, layer, x, m):
        pooled = equations.conv_norm_relu(layer.pooled, x.mean(dim=(2, 3), keepdim=True))
        assert [branch.dilation[0] for branch in layer.branches] == [1, 1, 2, 3]
        maps = [equations.conv_norm_relu(branch, x) for branch in layer.branches]
        maps.append(pooled.expand(-1, -1, *x.shape[2:]))
        return equations.conv_norm_relu(layer.g, torch.cat(maps, dim=1))


class TestASPOCR(SchemeBattery):
    scheme = ASPOCR
    arguments = dict(in_channels=8, channels=18, out_channels=25, dilations=(1, 2, 3), norm="BN")
    sizes = ({"h": 7, "w": 6},)
    # 2048 channels of features, 256 of each branch, 128 of phi, psi and delta: a 1x1 branch, three
    # dilated branches and OCR's own 3x3; phi and psi; delta and rho; g; norms.
    published = (
        {"in_channels": 2048},
        2048 * 256
        + 4 * 9 * 2048 * 256
        + 2 * (256 * 128 + 128 * 128)
        + 2 * 256 * 128
        + 5 * 256 * 256
        + 2 * (5 * 256 + 5 * 128 + 256 + 256),
        0.1,
    )

    def reference(self, layer, x, m):
        pixels = equations.conv_norm_relu(layer.bottleneck, x)
        f = equations.gather(pixels, m)
        y = equations.context(layer, equations.relation(layer, pixels, f), f, x.shape[2:])
        assert [branch.dilation[0] for branch in layer.branches] == [1, 1, 2, 3]
        branches = [equations.conv_norm_relu(branch, x) for branch in layer.branches]
        return equations.conv_norm_relu(layer.g, torch.cat([*branches, y], dim=1))
