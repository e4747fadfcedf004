"""OCR with the relation of ACFNet: the coarse segmentation itself."""

import equations
import pytest
import torch

from ocr_panoptic.layers import ACFOCR, GroundTruthOCR, one_hot_labels


def make_layer() -> ACFOCR:
    torch.manual_seed(1)
    return equations.randomise(ACFOCR(6, 4, 8, norm="BN", dropout=0.0))


@pytest.mark.parametrize("training", [False, True])
def test_equals_the_equations(training):
    layer = make_layer().train(training)

    def reference(x, m):
        w = equations.softmax(m.flatten(2), 1)
        return equations.augment(layer, x, w, equations.gather(x, m))

    equations.assert_equal_with_gradients(layer, reference, *equations.inputs())


def test_the_relation_is_the_coarse_segmentation():
    """It has no parameters and does not see the pixels: logits of ln 3 and 0 are 3/4 and 1/4."""
    layer = make_layer()
    assert {name.split(".")[0] for name in layer.state_dict()} == {"delta", "rho", "g"}
    m = torch.tensor([3.0, 1.0], dtype=torch.float64).log().view(1, 2, 1, 1)
    for x in (torch.zeros(1, 6, 1, 1).double(), torch.ones(1, 6, 1, 1).double()):
        assert layer.relation(x, m, None)[0, :, 0].tolist() == pytest.approx([0.75, 0.25])


def test_a_certain_segmentation_makes_it_gt_ocr():
    """Logits of 10^4 in the labelled class: the spatial softmax is the mean of the class, and the
    relation is one-hot."""
    layer = make_layer().eval()
    truth = GroundTruthOCR(6, 4, 8, norm="BN", dropout=0.0).double().eval()
    truth.load_state_dict(layer.state_dict())
    x, _ = equations.inputs()
    labels = torch.arange(15).remainder(4).view(1, 3, 5).expand(2, 3, 5)  # class 4 is absent
    m = one_hot_labels(labels, 5, 255, (3, 5)).double()
    torch.testing.assert_close(layer(x, 1e4 * m), truth(x, m), rtol=0, atol=1e-12)
