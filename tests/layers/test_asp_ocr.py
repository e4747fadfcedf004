"""ASP-OCR: OCR as a branch of atrous spatial pyramid pooling."""

import torch
from test_aspp import NEIGHBOURS, changed_by_one_pixel

from ocr_panoptic.layers import ASPOCR
from support import equations
from support.battery import SchemeBattery


class TestASPOCR(SchemeBattery):
    scheme = ASPOCR
    arguments = dict(in_channels=8, channels=16, out_channels=24, dilations=(1, 2, 3), norm="BN")
    sizes = ({"h": 7, "w": 6},)
    # 2048 channels of features, 256 of each branch, 128 of phi, psi and delta: a 1x1 branch, three
    # dilated ones and OCR's own 3x3; phi and psi; delta and rho; g; norms.
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
