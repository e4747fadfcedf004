"""The joint transformer: categories and pixels in one sequence."""

import equations
import pytest
import torch
from test_transformer import block, layer_norm

from ocr_panoptic.layers import JointTransformer


def make_layer(num_blocks: int = 2) -> JointTransformer:
    torch.manual_seed(1)
    return equations.randomise(JointTransformer(5, 6, 4, num_blocks=num_blocks, dropout=0.0))


@pytest.mark.parametrize("num_blocks", [1, 3])
def test_equals_repeated_blocks_over_queries_and_pixels(num_blocks):
    layer = make_layer(num_blocks)
    assert len(layer.blocks) == num_blocks

    def reference(x, m):
        queries = layer.category_queries[None].expand(len(x), -1, -1)
        tokens = torch.cat([queries, x.flatten(2).transpose(1, 2)], dim=1)
        for module in layer.blocks:
            tokens = block(module, tokens)
        z = layer_norm(layer.norm, tokens[:, 5:])
        return z.transpose(1, 2).unflatten(2, x.shape[2:])

    equations.assert_equal_with_gradients(layer, reference, *equations.inputs())


def test_every_pixel_sees_every_pixel_and_every_category():
    layer = make_layer(1)
    x, m = equations.inputs(n=1)
    x.requires_grad_()
    layer(x, m)[0, 0, 1, 2].backward()
    assert (x.grad.abs().sum(dim=1) > 0).all()
    assert (layer.category_queries.grad.abs().sum(dim=1) > 0).all()


def test_neither_pixels_nor_categories_have_an_order():
    layer = make_layer()
    x, _ = equations.inputs()
    z = layer(x, None)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    permuted = layer(x.flatten(2)[:, :, order].view_as(x), None)
    torch.testing.assert_close(permuted.flatten(2), z.flatten(2)[:, :, order])
    with torch.no_grad():
        layer.category_queries.copy_(layer.category_queries.flip(0))
    torch.testing.assert_close(layer(x, None), z)


def test_needs_a_block():
    with pytest.raises(ValueError, match="num_blocks is 0"):
        JointTransformer(5, num_blocks=0)
