"""OCR with the relation of Double Attention: from the pixel alone."""

import equations
import pytest
import torch

from ocr_panoptic.layers import DoubleAttentionOCR


def make_layer() -> DoubleAttentionOCR:
    torch.manual_seed(1)
    layer = DoubleAttentionOCR(5, 6, 4, 8, norm="BN", dropout=0.0)
    torch.nn.init.uniform_(layer.relation_predictor.bias, -1, 1)
    return equations.randomise(layer)


@pytest.mark.parametrize("training", [False, True])
def test_equals_the_equations(training):
    layer = make_layer().train(training)

    def reference(x, m):
        predictor = layer.relation_predictor
        logits = torch.einsum("kc,ncp->nkp", predictor.weight[..., 0, 0], x.flatten(2))
        w = equations.softmax(logits + predictor.bias[:, None], 1)
        return equations.augment(layer, x, w, equations.gather(x, m))

    equations.assert_equal_with_gradients(layer, reference, *equations.inputs())


def test_the_relation_does_not_change_with_the_regions():
    """Other regions change what is gathered, and nothing else."""
    layer = make_layer().eval()
    x, m = equations.inputs()
    other = m.flip(1) + 1
    w = layer.relation(x, m, equations.gather(x, m))
    assert torch.equal(w, layer.relation(x, other, equations.gather(x, other)))
    assert not torch.allclose(w, layer.relation(x + 1, m, equations.gather(x, m)))
    torch.testing.assert_close(w.sum(dim=1), torch.ones(2, 15, dtype=torch.float64))
    assert not torch.allclose(layer(x, m), layer(x, other))


def test_relation_hand_worked():
    """Two regions, one pixel x = (1, 2): logits 1 + 2 = 3 and 2 - 1 + 1 = 2."""
    layer = DoubleAttentionOCR(2, 2, 1, 2, norm="")
    with torch.no_grad():
        layer.relation_predictor.weight[:, :, 0, 0] = torch.tensor([[1.0, 1.0], [2.0, -0.5]])
        layer.relation_predictor.bias[:] = torch.tensor([0.0, 1.0])
        w = layer.relation(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1), None, None)
    assert w[0, :, 0].tolist() == pytest.approx([0.7310586, 0.2689414], abs=1e-6)
