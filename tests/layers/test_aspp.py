"""Atrous spatial pyramid pooling, and ASP-OCR, compared with their definitions."""

import torch

from ocr_panoptic.layers import ASPOCR, ASPP, ContextScheme
from support import equations
from support.battery import SchemeBattery

# Pixel (5, 5), and the pixels at the distances of the dilations 2 and 4.
NEIGHBOURS = {(5 + a * d, 5 + b * d) for d in (2, 4) for a in (-1, 0, 1) for b in (-1, 0, 1)}


def difference_of_one_pixel(layer: ContextScheme) -> torch.Tensor:
    """Return the change of the output [1, O, 11, 11] if pixel (5, 5) of the features changes."""
    x, m = equations.inputs(n=1, h=11, w=11)
    changed = x.clone()
    changed[:, :, 5, 5] += 1
    with torch.no_grad():
        return layer(changed, m) - layer(x, m)


def changed_by_one_pixel(layer: ContextScheme) -> set[tuple[int, int]]:
    difference = difference_of_one_pixel(layer).abs().sum(dim=(0, 1))
    return {tuple(p) for p in (difference > 1e-9).nonzero().tolist()}


class TestASPP(SchemeBattery):
    scheme = ASPP
    arguments = dict(in_channels=8, channels=5, out_channels=11, dilations=(1, 2, 3), norm="BN")
    sizes = ({"n": 3, "h": 7, "w": 6},)
    # Branches have 256 channels: two 1x1 and three 3x3 from 2048, fused by a 1x1; norms.
    published = ({"in_channels": 2048}, (2 + 3 * 9) * 2048 * 256 + 5 * 256 * 256 + 6 * 2 * 256, 0.1)

    def reference(self, layer, x, m):
        pooled = equations.conv_norm_relu(layer.pooled, x.mean(dim=(2, 3), keepdim=True))
        maps = [equations.conv_norm_relu(branch, x) for branch in layer.branches]
        maps.append(pooled.expand(-1, -1, *x.shape[2:]))
        return equations.conv_norm_relu(layer.g, torch.cat(maps, dim=1))

    def test_branches_see_a_pattern_and_the_pooled_image_everything(self):
        """Every pixel changes through the pooled branch, all by the same amount."""
        layer = self.make(channels=32, dilations=(2, 4)).eval()
        weight = layer.g.weight.detach().clone()
        with torch.no_grad():
            layer.g.norm.bias[:] = 50  # no ReLU cuts off values
            layer.g.weight[:, 3 * 32 :] = 0
            assert changed_by_one_pixel(layer) == NEIGHBOURS
            layer.g.weight[:, : 3 * 32], layer.g.weight[:, 3 * 32 :] = 0, weight[:, 3 * 32 :]
        pooled = difference_of_one_pixel(layer)
        assert pooled.abs().min(dim=1).values.max() > 1e-6
        torch.testing.assert_close(pooled, pooled[:, :, :1, :1].expand_as(pooled))


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
        branches = [equations.conv_norm_relu(branch, x) for branch in layer.branches]
        return equations.conv_norm_relu(layer.g, torch.cat([*branches, y], dim=1))

    def test_dilated_branches_see_a_pattern_and_the_context_sees_everything(self):
        layer = self.make(channels=32, dilations=(2, 4)).eval()
        assert len(changed_by_one_pixel(layer)) == 121
        with torch.no_grad():
            layer.g.weight[:, 3 * 32 :] = 0  # g takes the branches, then the context
        assert changed_by_one_pixel(layer) == NEIGHBOURS
