"""
The losses.

A new loss is added to LOSSES with a float64 reference that follows its definition. It inherits the
battery: values, gradients, ignored pixels, precision, logits of a lower resolution.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ocr_panoptic.layers import (
    bands,
    binary_cross_entropy,
    dice_loss,
    lovasz_softmax,
    pixel_cross_entropy,
    rarity_weighted_cross_entropy,
    region_mutual_information,
    resize,
)
from ocr_panoptic.modeling.losses import cross_entropy
from studies.measurement import saved_bytes
from studies.training_memory import AllocatedBytes

CLASSES = 4
WEIGHTS = (0.5, 1.0, 3.0, 2.0)


def make_input(size=(12, 13), full=None, classes=CLASSES, dtype=torch.float64):
    """Return logits and labels of two images; some rows are ignored, the last class is absent."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2, classes, *size, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes - 1, (2, *(full or size)), generator=generator)
    targets *= torch.rand(targets.shape, generator=generator) < 0.7
    targets[0, :2], targets[1, :, 3:5] = 255, 255
    return logits.to(dtype).requires_grad_(), targets


def pixels(logits, targets):
    """Return the logits [P, K] and labels [P] of the pixels that count."""
    logits = logits.detach().double().numpy().transpose(0, 2, 3, 1).reshape(-1, logits.shape[1])
    targets = targets.numpy().ravel()
    return logits[targets != 255], targets[targets != 255]


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def mean_of_present(loss, labels, weights):
    present = [k for k in range(CLASSES) if (labels == k).any()]
    return sum(weights[k] * loss(k) for k in present) / sum(weights[k] for k in present)


def expected_cross_entropy(logits, targets, weights):
    logits, labels = pixels(logits, targets)
    losses = -np.log(softmax(logits)[np.arange(len(labels)), labels])
    return np.average(losses, weights=np.array(weights)[labels])


def expected_rarity(logits, targets, _):
    """Return the cross-entropy with classes weighted by the share of pixels in other classes."""
    labels = pixels(logits, targets)[1]
    weights = [1 - (labels == k).mean() for k in range(CLASSES)]
    return expected_cross_entropy(logits, targets, weights)


def expected_binary(logits, targets, weights):
    logits, labels = pixels(logits, targets)
    p = 1 / (1 + np.exp(-logits))
    y = labels[:, None] == np.arange(CLASSES)
    return -(np.where(y, np.log(p), np.log(1 - p)) * weights).sum() / (len(labels) + 1)


def expected_dice(logits, targets, weights):
    logits, labels = pixels(logits, targets)
    p = softmax(logits)

    def loss(k):
        y = (labels == k).astype(float)
        return 1 - 2 * (p[:, k] * y).sum() / ((p[:, k] ** 2).sum() + (y**2).sum())

    return mean_of_present(loss, labels, weights)


def expected_lovasz(logits, targets, weights):
    """Integrate the Jaccard loss of the pixels with an error above t over t from 0 to 1."""
    logits, labels = pixels(logits, targets)
    p = softmax(logits)

    def loss(k):
        inside = labels == k
        errors = np.abs(inside - p[:, k])
        levels = np.concatenate([[0], np.unique(errors)])
        total = 0
        for low, high in zip(levels, levels[1:]):
            wrong = errors >= high
            union = (inside | wrong).sum()
            total += (high - low) * (1 - (inside & ~wrong).sum() / union)
        return total

    return mean_of_present(loss, labels, weights)


def pooled(map_):
    """Return the means of 4x4 cells that begin 2 pixels outside, where the values are 0."""
    padded = np.pad(map_, 2)
    rows, columns = (n // 4 for n in padded.shape)
    return padded[: 4 * rows, : 4 * columns].reshape(rows, 4, columns, 4).mean(axis=(1, 3))


def expected_rmi(logits, targets, weights):
    """Return the region mutual information, computed position by position."""
    logits, targets = logits.detach().double().numpy(), targets.numpy()
    total = 0.0
    for image, labels in zip(logits, targets):
        for k, weight in enumerate(weights):
            y = pooled((labels == k).astype(float))
            p = pooled((labels != 255) / (1 + np.exp(-image[k])) + 1e-6)
            centres = [(i, j) for i in range(1, y.shape[0] - 1) for j in range(1, y.shape[1] - 1)]
            vectors = (
                np.stack([m[i - 1 : i + 2, j - 1 : j + 2].ravel() for i, j in centres])
                for m in (y, p)
            )
            y, p = (v - v.mean(axis=0) for v in vectors)
            unexplained = y.T @ y - y.T @ p @ np.linalg.inv(p.T @ p + 5e-4 * np.eye(9)) @ p.T @ y
            factor = np.linalg.cholesky(unexplained + 5e-4 * np.eye(9))
            total += weight * 0.5 * 2 * np.log(np.diag(factor) + 1e-8).sum() / 9 / len(logits)
    return total


def rarity(logits, targets, ignore_value, weights=None, align_corners=False):
    """Return the loss of SegFix for logits of any size; it has no class weights."""
    logits = resize(logits, targets.shape[1:], align_corners)
    return rarity_weighted_cross_entropy(logits, targets, ignore_value)


LOSSES = {
    cross_entropy: expected_cross_entropy,
    binary_cross_entropy: expected_binary,
    dice_loss: expected_dice,
    lovasz_softmax: expected_lovasz,
    region_mutual_information: expected_rmi,
    rarity: expected_rarity,
}


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
class TestEveryLoss:
    @pytest.mark.parametrize("weights", [None, WEIGHTS])
    def test_value(self, loss, weights):
        logits, targets = make_input((22, 29))
        given = None if weights is None else torch.tensor(weights).double()
        expected = LOSSES[loss](logits, targets, weights or (1,) * CLASSES)
        assert loss(logits, targets, 255, given).item() == pytest.approx(expected, rel=1e-9)

    @pytest.mark.slow
    def test_gradient(self, loss):
        logits, targets = make_input()
        assert torch.autograd.gradcheck(lambda x: loss(x, targets, 255), logits)
        gradient = torch.autograd.grad(loss(logits, targets, 255), logits)[0]
        assert gradient[0, :, :2].eq(0).all() and gradient[0, :, 2:].ne(0).any()

    def test_nothing_to_learn(self, loss):
        """The loss is least if all pixels are ignored, or predicted correctly with certainty."""
        logits, targets = make_input()
        empty = loss(logits, torch.full_like(targets, 255), 255)
        assert empty.isfinite() and torch.autograd.grad(empty, logits)[0].eq(0).all()
        halves = (torch.arange(29) > 12).long().expand(2, 22, 29).clone()
        halves[:, :2] = 255
        right = 50.0 * F.one_hot(halves.clamp(max=2), CLASSES).permute(0, 3, 1, 2).double() - 25
        best = loss(right, halves, 255).item()
        if loss is region_mutual_information:
            assert best < loss(-right, halves, 255) - 1
        else:
            assert empty == 0 and best == pytest.approx(0, abs=1e-9)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_float32_in_autocast(self, loss, dtype):
        logits, targets = make_input((22, 29), dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16):
            found = loss(logits, targets, 255)
        expected = loss(logits.double(), targets, 255)
        assert found.dtype in (torch.float32, torch.float64)
        assert found.item() == pytest.approx(expected.item(), rel=1e-4)

    @pytest.mark.parametrize("align_corners", [False, True])
    def test_logits_of_a_lower_resolution(self, loss, align_corners, monkeypatch):
        logits, targets = make_input((8, 11), (61, 83))
        expected = loss(resize(logits, targets.shape[1:], align_corners), targets, 255)
        monkeypatch.setitem(bands.BAND_BYTES, "cpu", 7 * 2 * CLASSES * 83 * 8)
        found = loss(logits, targets, 255, None, align_corners)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
        gradients = [torch.autograd.grad(y, logits)[0] for y in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-15)


SIZES = [
    *(((8, 11), (61, 83)), ((97, 12), (776, 96)), ((9, 7), (9, 7)), ((30, 40), (13, 17))),
    *(((1, 3), (5, 9)), ((3, 1), (1, 4))),
]


@pytest.mark.slow
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size, full", SIZES)
@pytest.mark.parametrize("rows", [1, 7, 10**6])
def test_bands_of_any_size(monkeypatch, size, full, align_corners, rows):
    """Losses and gradients of each pixel do not depend on the bands."""
    logits, targets = make_input(size, full)
    weights = torch.rand(targets.shape, dtype=torch.float64)
    rows = max(rows, full[0] // 16)
    monkeypatch.setitem(bands.BAND_BYTES, "cpu", rows * 2 * CLASSES * full[1] * 8)
    found = pixel_cross_entropy(logits, targets, 255, align_corners)
    enlarged = resize(logits, full, align_corners)
    expected = F.cross_entropy(enlarged, targets, ignore_index=255, reduction="none")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    gradients = [torch.autograd.grad((y * weights).sum(), logits)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-11)


@pytest.mark.parametrize("loss", [pixel_cross_entropy, binary_cross_entropy, dice_loss])
def test_full_size_logits_never_exist(loss):
    """The small logits have 0.2 MiB, a band has 1 MiB; logits of full size would have 3.2 MiB."""
    logits, targets = make_input((40, 60), (160, 240), classes=11, dtype=torch.float32)
    with AllocatedBytes() as allocated:
        losses, saved = saved_bytes(lambda: loss(logits, targets, 255))
        losses.sum().backward()
    full = targets.numel() * 11 * 4
    assert allocated.largest <= bands.BAND_BYTES["cpu"] < full / 3
    assert logits.nbytes + targets.nbytes <= saved < logits.nbytes + targets.nbytes + 1000


@pytest.mark.parametrize("gib, mib", [(4, 32), (11, 88), (24, 128), (80, 128)])
def test_bands_of_a_gpu(monkeypatch, gib, mib):
    """There are few bands, which take little of a small GPU's memory, or fit a CPU's cache."""
    card = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    assert bands.band_bytes(torch.device("cuda")) == mib * 2**20
    assert bands.band_bytes(torch.device("cpu")) == 2**20


@pytest.mark.parametrize("logit", [0.0, 200.0, -200.0])
def test_rmi_of_constant_probabilities_and_no_truth(logit):
    """Matrices of rank 0, or nearly 0, give finite values and gradients."""
    _, targets = make_input()
    for labels in (targets, torch.full_like(targets, 255), torch.zeros_like(targets)):
        logits = torch.full((2, 3, *targets.shape[1:]), logit, requires_grad=True)
        loss = region_mutual_information(logits, labels, 255)
        loss.backward()
        assert loss.isfinite() and logits.grad.isfinite().all()


def test_rmi_leaves_out_a_matrix_without_factor_but_sees_a_diverged_network(monkeypatch):
    """A ridge below 0 leaves no matrix with a factor, as rounding might do."""
    logits, targets = make_input()
    with monkeypatch.context() as patch:
        patch.setattr("ocr_panoptic.layers.rmi.RIDGE", -1e4)
        loss = region_mutual_information(logits, targets, 255)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6) and logits.grad.eq(0).all()
    with torch.no_grad():
        logits[1, 2, 3, 4] = float("nan")
    assert region_mutual_information(logits, targets, 255).isnan()


def test_rmi_of_too_small_images():
    with pytest.raises(ValueError, match="at least 8 x 8 pixels, found 7 x 20"):
        region_mutual_information(*make_input((7, 20)), 255)
    assert region_mutual_information(*make_input((8, 8)), 255).isfinite()
