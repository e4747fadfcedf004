"""Atrous spatial pyramid pooling, against its definition."""

import equations
import pytest
import torch

from ocr_panoptic.layers import ASPP


def make_layer(channels: int = 4, dilations: tuple[int, ...] = (1, 2, 3)) -> ASPP:
    torch.manual_seed(1)
    layer = ASPP(6, channels, 2 * channels, dilations=dilations, norm="BN", dropout=0.0)
    return equations.randomise(layer)


@pytest.mark.parametrize("training", [False, True])
def test_equals_the_definition(training):
    layer = make_layer().train(training)

    def definition(x, m):
        pooled = equations.conv_norm_relu(layer.pooled, x.mean(dim=(2, 3), keepdim=True))
        maps = [equations.conv_norm_relu(branch, x) for branch in layer.branches]
        maps.append(pooled.expand(-1, -1, *x.shape[2:]))
        return equations.conv_norm_relu(layer.g, torch.cat(maps, dim=1))

    x, m = equations.inputs(n=3, h=7, w=6)
    equations.assert_equal_with_gradients(layer, definition, x, m)


def test_branches_see_a_pattern_and_the_pooled_image_everything():
    """What one pixel of the features changes: itself and its neighbours at the distances of the
    dilations, without the pooled branch; every pixel, and all of them alike, by it alone."""
    layer = make_layer(32, dilations=(2, 4)).eval()
    x = equations.inputs(n=1, h=11, w=11)[0]
    changed = x.clone()
    changed[:, :, 5, 5] += 1
    weight = layer.g.weight.detach().clone()

    def difference(kept: slice) -> torch.Tensor:
        with torch.no_grad():
            layer.g.weight.zero_()
            layer.g.weight[:, kept] = weight[:, kept]
            layer.g.norm.bias[:] = 50  # no ReLU at work
            return layer(changed, None) - layer(x, None)

    local = difference(slice(0, 3 * 32)).abs().sum(dim=(0, 1)) > 1e-9
    neighbours = [(5 + a * d, 5 + b * d) for d in (2, 4) for a in (-1, 0, 1) for b in (-1, 0, 1)]
    assert {tuple(p) for p in local.nonzero().tolist()} == set(neighbours)
    pooled = difference(slice(3 * 32, None))
    assert pooled.abs().min(dim=1).values.max() > 1e-6
    torch.testing.assert_close(pooled, pooled[:, :, :1, :1].expand_as(pooled))


def test_parameters_of_the_published_module():
    """256 channels of each branch: two 1x1 and three 3x3 of 2048, fused by a 1x1; hand-worked."""
    count = sum(p.numel() for p in ASPP(2048).parameters())
    assert count == (2 + 3 * 9) * 2048 * 256 + 5 * 256 * 256 + 6 * 2 * 256
