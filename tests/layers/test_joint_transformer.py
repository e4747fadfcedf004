"""The joint transformer: categories and pixels in one sequence."""

import pytest
import torch
from test_transformer import block, layer_norm

from ocr_panoptic.layers import JointTransformer
from support.battery import SchemeBattery


class TestJointTransformer(SchemeBattery):
    scheme = JointTransformer
    arguments = dict(num_classes=5, channels=8, key_channels=8, num_blocks=2)
    variants = ({"num_blocks": 1}, {"num_blocks": 3})
    # 19 queries; two blocks of four projections and a hidden layer of 4 x 512; five layer norms.
    published = (
        {"num_classes": 19},
        19 * 512 + 2 * (4 * 512 * 256 + 2 * 4 * 512 * 512 + 5 * 512) + 5 * 2 * 512,
        0.05,
    )

    def reference(self, layer, x, m, num_blocks):
        assert len(layer.blocks) == num_blocks
        queries = layer.category_queries[None].expand(len(x), -1, -1)
        tokens = torch.cat([queries, x.flatten(2).transpose(1, 2)], dim=1)
        for module in layer.blocks:
            tokens = block(module, tokens)
        z = layer_norm(layer.norm, tokens[:, 5:])
        return z.transpose(1, 2).unflatten(2, x.shape[2:])

    def test_every_pixel_sees_every_pixel_and_every_category(self):
        layer, (x, m) = self.make(num_blocks=1), self.inputs(n=1)
        x.requires_grad_()
        layer(x, m)[0, 0, 1, 2].backward()
        assert (x.grad.abs().sum(dim=1) > 0).all()
        assert (layer.category_queries.grad.abs().sum(dim=1) > 0).all()

    def test_categories_have_no_order(self):
        layer, (x, m) = self.make(), self.inputs()
        z = layer(x, m)
        with torch.no_grad():
            layer.category_queries.copy_(layer.category_queries.flip(0))
        torch.testing.assert_close(layer(x, m), z)


def test_needs_a_block():
    with pytest.raises(ValueError, match="num_blocks is 0"):
        JointTransformer(5, num_blocks=0)
