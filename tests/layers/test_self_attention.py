"""Self-attention among pixels, against the plain form of its equation."""

import equations
import pytest
import torch

from ocr_panoptic.layers import SelfAttention


def make_layer() -> SelfAttention:
    torch.manual_seed(1)
    layer = equations.randomise(SelfAttention(6, 4, 8, norm="BN", dropout=0.0))
    torch.nn.init.uniform_(layer.output.weight, -1, 1)
    return layer


@pytest.mark.parametrize("training", [False, True])
def test_equals_the_equation(training):
    """With the P x P weights, and y before g."""
    layer = make_layer().train(training)

    def equation(x, m):
        queries = equations.conv_norm_relu(layer.phi, x).flatten(2)
        keys = equations.conv_norm_relu(layer.psi, x).flatten(2)
        weights = equations.softmax(torch.einsum("ndp,ndq->npq", queries, keys) / 4**0.5, 2)
        values = equations.linear(layer.value, x).flatten(2)
        y = torch.einsum("npq,ndq->ndp", weights, values).unflatten(2, x.shape[2:])
        y = equations.linear(layer.output, y)
        return equations.conv_norm_relu(layer.g, torch.cat([x, y], dim=1))

    equations.assert_equal_with_gradients(layer, equation, *equations.inputs())


def test_pixels_have_no_position():
    """Pixels in another order give the same result in that order: a convolution would not."""
    layer, (x, m) = make_layer().eval(), equations.inputs()
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    shuffled = x.flatten(2)[:, :, order].view_as(x)
    expected = layer(x, m).flatten(2)[:, :, order]
    torch.testing.assert_close(layer(shuffled, m).flatten(2), expected, rtol=0, atol=1e-12)


def test_starts_without_context():
    """W is zero: at the start g sees the pixel alone, whatever the others are."""
    torch.manual_seed(0)
    layer = SelfAttention(6, 4, 8, norm="BN").double().eval()
    x, m = equations.inputs()
    changed = x.clone()
    changed[:, :, 0, 0] += 1
    difference = (layer(changed, m) - layer(x, m)).abs().sum(dim=(0, 1))
    assert difference[0, 0] > 1e-3 and (difference > 0).sum() == 1


def test_parameters_of_the_complexity_table():
    """Without the head's 3x3: three of 512 -> 256, 256 -> 512, 1024 -> 512, and three norms."""
    count = sum(p.numel() for p in SelfAttention().parameters())
    assert count == 4 * 512 * 256 + 1024 * 512 + 2 * (256 + 256 + 512)
