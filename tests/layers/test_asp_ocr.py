"""ASP-OCR: OCR as a branch of atrous spatial pyramid pooling."""

import equations
import pytest
import torch

from ocr_panoptic.layers import ASPOCR


def make_layer(channels: int = 4, dilations: tuple[int, ...] = (1, 2, 3)) -> ASPOCR:
    torch.manual_seed(1)
    layer = ASPOCR(6, channels, 2 * channels, dilations=dilations, norm="BN", dropout=0.0)
    return equations.randomise(layer)


@pytest.mark.parametrize("training", [False, True])
def test_equals_the_equations(training):
    layer = make_layer(8).train(training)

    def reference(x, m):
        pixels = equations.conv_norm_relu(layer.bottleneck, x)
        f = equations.gather(pixels, m)
        query, key = pixels, f
        for phi, psi in zip(layer.phi, layer.psi):
            query, key = equations.conv_norm_relu(phi, query), equations.conv_norm_relu(psi, key)
        kappa = torch.einsum("ndp,ndk->nkp", query.flatten(2), key[..., 0])
        w = equations.softmax(kappa / 4**0.5, 1)  # channels // 2 = 4 key channels
        y = equations.context(layer, w, f, x.shape[2:])
        branches = [equations.conv_norm_relu(branch, x) for branch in layer.branches]
        return equations.conv_norm_relu(layer.g, torch.cat([*branches, y], dim=1))

    equations.assert_equal_with_gradients(layer, reference, *equations.inputs(h=7, w=6))


def test_dilated_branches_see_a_pattern_and_the_context_sees_everything():
    """What one pixel of the features changes: itself and its neighbours at the distances of the
    dilations, without the context; every pixel, with it."""
    layer = make_layer(32, dilations=(2, 4)).eval()
    x, m = equations.inputs(n=1, h=11, w=11)
    changed = x.clone()
    changed[:, :, 5, 5] += 1

    def differing() -> set[tuple[int, int]]:
        difference = (layer(changed, m) - layer(x, m)).abs().sum(dim=(0, 1))
        return {tuple(p) for p in (difference > 1e-9).nonzero().tolist()}

    assert len(differing()) == 121
    with torch.no_grad():
        layer.g.weight[:, 3 * 32 :] = 0  # g takes the branches, then the context
    neighbours = [(5 + a * d, 5 + b * d) for d in (2, 4) for a in (-1, 0, 1) for b in (-1, 0, 1)]
    assert differing() == set(neighbours)


def test_parameters_of_the_published_module():
    """2048 channels of features, 256 of each branch, 128 of phi, psi and delta; hand-worked, with
    norms in the place of biases."""
    branches = 2048 * 256 + 4 * 9 * 2048 * 256  # 1x1; dilated and OCR's own 3x3
    ocr = 2 * (256 * 128 + 128 * 128) + 256 * 128 + 128 * 256
    fusion = 5 * 256 * 256
    norms = 2 * (5 * 256 + 5 * 128 + 256 + 256)
    count = sum(p.numel() for p in ASPOCR(2048).parameters())
    assert count == branches + ocr + fusion + norms
