"""Double attention, against the plain form of its equations."""

import torch

from ocr_panoptic.layers import DoubleAttention
from support import equations
from support.battery import SchemeBattery


class TestDoubleAttention(SchemeBattery):
    scheme = DoubleAttention
    arguments = dict(num_regions=5, in_channels=8, key_channels=8, out_channels=16, norm="BN")
    # The complexity table, without the head's 3x3: A 512 -> 256, two of 512 -> 64, 256 -> 512,
    # 1024 -> 512; the bias of the relation, norms.
    published = (
        {},
        512 * 256 + 2 * 512 * 64 + 256 * 512 + 1024 * 512 + 64 + 2 * 2 * 512,
        0.05,
    )

    def reference(self, layer, x, m):
        """A and rho at every pixel, where they are defined; the module has them at the regions."""
        features = equations.linear(layer.delta, x).flatten(2)
        gather = equations.softmax(equations.linear(layer.region_predictor, x).flatten(2), 2)
        distribute = equations.softmax(equations.linear(layer.relation_predictor, x).flatten(2), 1)
        regions = torch.einsum("ndp,nrp->ndr", features, gather)
        y = torch.einsum("ndr,nrp->ndp", regions, distribute).unflatten(2, x.shape[2:])
        y = equations.conv_norm_relu(layer.rho, y)
        return equations.conv_norm_relu(layer.g, torch.cat([x, y], dim=1))

    def test_one_region_is_global_pooling(self):
        """One region goes to all pixels alike; gathered with equal weights, it is the mean."""
        layer = self.make(num_regions=1).eval()
        torch.nn.init.zeros_(layer.region_predictor.weight)
        x, m = self.inputs()
        pooled = equations.linear(layer.delta, x.mean(dim=(2, 3), keepdim=True))
        y = equations.conv_norm_relu(layer.rho, pooled).expand(-1, -1, *x.shape[2:])
        expected = equations.conv_norm_relu(layer.g, torch.cat([x, y], dim=1))
        torch.testing.assert_close(layer(x, m), expected, rtol=0, atol=1e-12)
