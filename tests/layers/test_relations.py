"""OCR with the relations of ACFNet, of Double Attention and of the ground truth."""

import numpy as np
import torch
import torch.nn.functional as F

from ocr_panoptic.layers import ACFOCR, DoubleAttentionOCR, GroundTruthOCR, one_hot_labels
from support import equations
from support.battery import SchemeBattery

# Delta, rho and g with their norms.
REGION_PARAMETERS = 2 * 512 * 256 + 1024 * 512 + 2 * (256 + 2 * 512)


class TestACFOCR(SchemeBattery):
    scheme = ACFOCR
    arguments = dict(in_channels=8, key_channels=12, out_channels=18, norm="BN")
    published = ({}, REGION_PARAMETERS, 0.05)

    def reference(self, layer, x, m):
        w = equations.softmax(m.flatten(2), 1)
        return equations.augment(layer, x, w, equations.gather(x, m))


class TestDoubleAttentionOCR(SchemeBattery):
    scheme = DoubleAttentionOCR
    arguments = dict(num_classes=5, **TestACFOCR.arguments)
    published = ({"num_classes": 19}, REGION_PARAMETERS + 513 * 19, 0.05)

    def inputs(self, **size):
        return super().inputs(**{**size, "k": 5})  # number of classes that the relation predicts

    def reference(self, layer, x, m):
        w = equations.softmax(equations.linear(layer.relation_predictor, x).flatten(2), 1)
        return equations.augment(layer, x, w, equations.gather(x, m))


def labels_of(n: int, k: int, h: int, w: int) -> torch.Tensor:
    """Return labels [n, h, w] with some ignored pixels; the first image lacks the last class."""
    labels = torch.arange(n * h * w).mul(7).remainder(k).view(n, h, w)
    labels[0][labels[0] == k - 1] = 0
    labels[:, 0, :2] = 255
    return labels


class TestGroundTruthOCR(SchemeBattery):
    scheme = GroundTruthOCR
    arguments = dict(in_channels=8, key_channels=12, out_channels=18, norm="BN")
    published = ({}, REGION_PARAMETERS, 0.05)
    variants = ({}, {"part": "gather"})

    def inputs(self, n=2, k=5, h=3, w=5):
        x, _ = equations.inputs(n=n, h=h, w=w)
        return x, one_hot_labels(labels_of(n, k, h, w), k, 255, (h, w)).double()

    def reference(self, layer, x, m, part="both"):
        """
        Compute the scheme by loops over pixels.

        A head gives m no gradient; here m has the gradient of the mean of soft labels.
        """
        truth = torch.cat([m, 1 - m.sum(dim=1, keepdim=True)], dim=1)
        means, w = [], truth.flatten(2)
        for n in range(len(x)):
            regions = []
            for degrees in truth[n]:
                total = degrees.sum() if degrees.any() else 1
                regions.append((x[n] * degrees).sum(dim=(1, 2)) / total)
            means.append(torch.stack(regions, dim=1))
        f = torch.stack(means)[..., None]
        if part == "gather":
            w = equations.relation(layer, x, f)
        return equations.augment(layer, x, w, f)

    def test_the_true_relation_of_predicted_regions(self):
        """Each pixel sees the predicted region of its own label, or nothing without a label."""
        layer, (x, truth) = self.make(part="relation").eval(), self.inputs()
        _, logits = equations.inputs(n=2, h=3, w=5)

        def reference(x, logits):
            f, labels = equations.gather(x, logits), labels_of(2, 5, 3, 5)
            seen = torch.zeros_like(x)
            for n, i, j in np.ndindex(2, 3, 5):
                if labels[n, i, j] != 255:
                    seen[n, :, i, j] = f[n, :, labels[n, i, j], 0]
            y = equations.conv_norm_relu(layer.rho, equations.conv_norm_relu(layer.delta, seen))
            return equations.conv_norm_relu(layer.g, torch.cat([x, y], dim=1))

        forward = layer.forward
        layer.forward = lambda x, logits: forward(x, torch.cat([truth, logits], dim=1))
        equations.assert_equal_with_gradients(layer, reference, x, logits)


def test_one_hot_labels_are_the_nearest():
    """The result equals F.interpolate's "nearest-exact": the label at each feature's centre."""
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.choice([0, 1, 2, 255], size=(2, 9, 14)))
    for size in ((3, 4), (9, 14), (5, 3), (18, 28)):
        actual = one_hot_labels(labels, 3, 255, size)
        nearest = F.interpolate(labels[:, None].double(), size=size, mode="nearest-exact")[:, 0]
        for k in range(3):
            assert torch.equal(actual[:, k], (nearest == k).float())
    assert actual.sum(dim=1).max() == 1
