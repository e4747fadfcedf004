"""OCR with the relations of ACFNet and of Double Attention."""

import pytest
import torch

from ocr_panoptic.layers import ACFOCR, DoubleAttentionOCR, GroundTruthOCR, one_hot_labels
from support import equations
from support.battery import SchemeBattery

OF_REGIONS = 2 * 512 * 256 + 1024 * 512 + 2 * (256 + 2 * 512)  # delta, rho, g and their norms


class TestACFOCR(SchemeBattery):
    scheme = ACFOCR
    arguments = dict(in_channels=8, key_channels=8, out_channels=16, norm="BN")
    published = ({}, OF_REGIONS, 0.05)

    def reference(self, layer, x, m):
        return equations.augment(
            layer, x, equations.softmax(m.flatten(2), 1), equations.gather(x, m)
        )

    def test_the_relation_is_the_coarse_segmentation(self):
        """It does not see the pixels: logits of ln 3 and 0 are 3/4 and 1/4."""
        m = torch.tensor([3.0, 1.0], dtype=torch.float64).log().view(1, 2, 1, 1)
        for x in (torch.zeros(1, 8, 1, 1).double(), torch.ones(1, 8, 1, 1).double()):
            w = self.make().relation(x, m, None)
            assert w[0, :, 0].tolist() == pytest.approx([0.75, 0.25])

    def test_a_certain_segmentation_makes_it_gt_ocr(self):
        """Logits of 10^4 in the labelled class: the spatial softmax is the mean of the class, and
        the relation is one-hot."""
        layer = self.make().eval()
        truth = GroundTruthOCR(**self.arguments, dropout=0.0).double().eval()
        truth.load_state_dict(layer.state_dict())
        x, _ = self.inputs()
        labels = torch.arange(15).remainder(4).view(1, 3, 5).expand(2, 3, 5)  # class 4 is absent
        m = one_hot_labels(labels, 5, 255, (3, 5)).double()
        torch.testing.assert_close(layer(x, 1e4 * m), truth(x, m), rtol=0, atol=1e-12)


class TestDoubleAttentionOCR(SchemeBattery):
    scheme = DoubleAttentionOCR
    arguments = dict(num_classes=5, **TestACFOCR.arguments)
    published = ({"num_classes": 19}, OF_REGIONS + 513 * 19, 0.05)

    def inputs(self, **size):
        return super().inputs(**{**size, "k": 5})  # the classes that the relation predicts

    def reference(self, layer, x, m):
        w = equations.softmax(equations.linear(layer.relation_predictor, x).flatten(2), 1)
        return equations.augment(layer, x, w, equations.gather(x, m))

    def test_relation_hand_worked(self):
        """Two regions, one pixel x = (1, 2): logits 1 + 2 = 3 and 2 - 1 + 1 = 2."""
        layer = DoubleAttentionOCR(2, 2, 1, 2, norm="")
        with torch.no_grad():
            layer.relation_predictor.weight[:, :, 0, 0] = torch.tensor([[1.0, 1.0], [2.0, -0.5]])
            layer.relation_predictor.bias[:] = torch.tensor([0.0, 1.0])
            w = layer.relation(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1), None, None)
        assert w[0, :, 0].tolist() == pytest.approx([0.7310586, 0.2689414], abs=1e-6)
