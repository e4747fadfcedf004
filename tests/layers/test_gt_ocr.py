"""GT-OCR: each pixel gets the mean of its own class."""

import equations
import numpy as np
import torch
import torch.nn.functional as F
from battery import SchemeBattery
from test_relations import OF_REGIONS

from ocr_panoptic.layers import GroundTruthOCR, one_hot_labels


def labels_of(n: int, k: int, h: int, w: int) -> torch.Tensor:
    """[n, h, w]: the last class is absent in the first image; 255, which is ignored, is there."""
    labels = torch.arange(n * h * w).mul(7).remainder(k).view(n, h, w)
    labels[0][labels[0] == k - 1] = 0
    labels[:, 0, :2] = 255
    return labels


class TestGroundTruthOCR(SchemeBattery):
    scheme = GroundTruthOCR
    arguments = dict(in_channels=8, key_channels=8, out_channels=16, norm="BN")
    published = ({}, OF_REGIONS, 0.05)

    def inputs(self, n=2, k=5, h=3, w=5):
        x, _ = equations.inputs(n=n, h=h, w=w)
        return x, one_hot_labels(labels_of(n, k, h, w), k, 255, (h, w)).double()

    def reference(self, layer, x, m):
        """Loops over pixels; the gradients of m, which has none in a head, are those of the mean
        of soft labels."""
        truth = torch.cat([m, 1 - m.sum(dim=1, keepdim=True)], dim=1)
        means, w = [], truth.flatten(2)
        for n in range(len(x)):
            regions = []
            for degrees in truth[n]:
                total = degrees.sum() if degrees.any() else 1
                regions.append((x[n] * degrees).sum(dim=(1, 2)) / total)
            means.append(torch.stack(regions, dim=1))
        return equations.augment(layer, x, w, torch.stack(means)[..., None])

    def test_each_pixel_is_described_by_the_mean_of_its_label(self):
        """The pixels without a label see the mean of their like. With the layer's own modules."""
        layer, (x, m) = self.make().eval(), self.inputs()
        labels, means = labels_of(2, 5, 3, 5), torch.zeros_like(x)
        for n, i, j in np.ndindex(2, 3, 5):
            means[n, :, i, j] = x[n][:, labels[n] == labels[n, i, j]].mean(dim=1)
        expected = layer.g(torch.cat([x, layer.rho(layer.delta(means))], dim=1))
        torch.testing.assert_close(layer(x, m), expected, rtol=0, atol=1e-12)


def test_one_hot_labels_are_the_nearest():
    """As F.interpolate's "nearest-exact": the label at the centre of each feature pixel."""
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.choice([0, 1, 2, 255], size=(2, 9, 14)))
    for size in ((3, 4), (9, 14), (5, 3), (18, 28)):
        actual = one_hot_labels(labels, 3, 255, size)
        nearest = F.interpolate(labels[:, None].double(), size=size, mode="nearest-exact")[:, 0]
        for k in range(3):
            assert torch.equal(actual[:, k], (nearest == k).float())
    assert actual.sum(dim=1).max() == 1
