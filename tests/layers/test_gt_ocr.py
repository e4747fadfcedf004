"""GT-OCR: each pixel gets the mean of its own class."""

import numpy as np
import torch
import torch.nn.functional as F

from ocr_panoptic.layers import GroundTruthOCR, one_hot_labels


def make_layer(norm: str = "BN") -> GroundTruthOCR:
    torch.manual_seed(0)
    layer = GroundTruthOCR(6, 4, 8, norm=norm, dropout=0.0).double()
    for module in layer.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.bias, -0.2, 0.5)
            torch.nn.init.uniform_(module.running_mean, -0.5, 0.5)
    return layer


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels and labels of two images: class 1 is absent in the first, 255 is ignored."""
    torch.manual_seed(1)
    x = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    labels = torch.tensor(
        [
            [[0, 0, 2, 2], [0, 0, 2, 255], [255, 2, 2, 2]],
            [[1, 1, 1, 1], [0, 0, 0, 0], [2, 2, 2, 2]],
        ]
    )
    return x, labels


def test_each_pixel_is_described_by_the_mean_of_its_class():
    """Against loops over pixels: mean of the class, delta, rho, g with the layer's own modules."""
    layer = make_layer().eval()
    x, labels = sample()
    z = layer(x, one_hot_labels(labels, 3, 255, (3, 4)).double())
    means = torch.zeros_like(x)
    for n in range(2):
        for i in range(3):
            for j in range(4):
                same = labels[n] == labels[n, i, j]
                means[n, :, i, j] = x[n][:, same].mean(dim=1)
    expected = layer.g(torch.cat([x, layer.rho(layer.delta(means))], dim=1))
    torch.testing.assert_close(z, expected, rtol=0, atol=1e-12)


def test_no_label_is_a_region_of_its_own():
    """Pixels without a label see the mean of their like, in training as in evaluation."""
    layer = make_layer("")
    x, labels = sample()
    m = one_hot_labels(labels, 3, 255, (3, 4)).double()
    ignored = labels[0] == 255
    changed = x.clone()
    changed[0][:, ~ignored] += 1.0  # other regions do not matter to them
    for training in (True, False):
        layer.train(training)
        before, after = layer(x, m)[0][:, ignored], layer(changed, m)[0][:, ignored]
        torch.testing.assert_close(before, after, rtol=0, atol=1e-12)


def test_no_soft_transforms():
    assert not any(k.startswith(("phi", "psi")) for k in make_layer().state_dict())


def test_gradients_reach_pixels_and_parameters():
    layer = make_layer().train()
    x, labels = sample()
    x.requires_grad_()
    layer(x, one_hot_labels(labels, 3, 255, (3, 4)).double()).square().sum().backward()
    assert x.grad.abs().sum() > 0
    assert all(p.grad.abs().sum() > 0 for p in layer.parameters())


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
