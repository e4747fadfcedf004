"""Double attention, against the plain form of its equations."""

import equations
import pytest
import torch

from ocr_panoptic.layers import DoubleAttention


def make_layer(num_regions: int = 5) -> DoubleAttention:
    torch.manual_seed(1)
    layer = DoubleAttention(num_regions, 6, 4, 8, norm="BN", dropout=0.0)
    torch.nn.init.uniform_(layer.relation_predictor.bias, -1, 1)
    return equations.randomise(layer)


@pytest.mark.parametrize("training", [False, True])
def test_equals_the_equations(training):
    """A and rho at every pixel, where they are defined; the module has them at the regions."""
    layer = make_layer().train(training)

    def definition(x, m):
        features = equations.linear(layer.delta, x).flatten(2)
        gather = equations.softmax(equations.linear(layer.region_predictor, x).flatten(2), 2)
        distribute = equations.softmax(equations.linear(layer.relation_predictor, x).flatten(2), 1)
        regions = torch.einsum("ndp,nrp->ndr", features, gather)
        y = torch.einsum("ndr,nrp->ndp", regions, distribute).unflatten(2, x.shape[2:])
        y = equations.conv_norm_relu(layer.rho, y)
        return equations.conv_norm_relu(layer.g, torch.cat([x, y], dim=1))

    equations.assert_equal_with_gradients(layer, definition, *equations.inputs())


def test_one_region_is_global_pooling():
    """One region goes to all pixels alike; gathered with equal weights, it is the mean."""
    layer = make_layer(num_regions=1).eval()
    torch.nn.init.zeros_(layer.region_predictor.weight)
    x, m = equations.inputs()
    pooled = equations.linear(layer.delta, x.mean(dim=(2, 3), keepdim=True))
    y = equations.conv_norm_relu(layer.rho, pooled).expand(-1, -1, *x.shape[2:])
    expected = equations.conv_norm_relu(layer.g, torch.cat([x, y], dim=1))
    torch.testing.assert_close(layer(x, m), expected, rtol=0, atol=1e-12)


def test_the_coarse_prediction_has_no_part():
    layer, (x, m) = make_layer().eval(), equations.inputs()
    assert torch.equal(layer(x, m), layer(x, m.flip(1) + 1)) and not layer.uses_regions


def test_parameters_of_the_complexity_table():
    """Without the head's 3x3: A 512 -> 256, two of 512 -> 64, 256 -> 512, 1024 -> 512."""
    count = sum(p.numel() for p in DoubleAttention().parameters())
    convolutions = 512 * 256 + 2 * 512 * 64 + 256 * 512 + 1024 * 512
    assert count == convolutions + 64 + 2 * 2 * 512  # bias of the relation, norms
