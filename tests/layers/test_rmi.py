"""RMI against NumPy in float64, position by position, and where its matrices are singular."""

import numpy as np
import pytest
import torch

from ocr_panoptic.layers import region_mutual_information


def make_input(size=(22, 29), classes=3):
    """Truth in large areas, two images, a corner ignored."""
    generator = torch.Generator().manual_seed(0)
    areas = torch.randint(classes, (2, 1, 4, 5), generator=generator).double()
    targets = torch.nn.functional.interpolate(areas, size, mode="nearest")[:, 0].long()
    targets[0, :9, :6] = 255
    logits = torch.randn(2, classes, *size, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), targets


def pooled(map_):
    """Means of 4x4 cells that begin 2 pixels outside, where there is 0."""
    padded = np.pad(map_, 2)
    rows, columns = (n // 4 for n in padded.shape)
    return padded[: 4 * rows, : 4 * columns].reshape(rows, 4, columns, 4).mean(axis=(1, 3))


def expected(logits, targets, weights):
    logits, targets = logits.detach().numpy(), targets.numpy()
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


@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 3.0)])
def test_value(weights):
    logits, targets = make_input()
    class_weights = None if weights is None else torch.tensor(weights).double()
    found = region_mutual_information(logits, targets, 255, class_weights)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(expected(logits, targets, weights or (1, 1, 1)), rel=1e-9)


@pytest.mark.slow
def test_gradient():
    logits, targets = make_input((12, 13), classes=2)
    assert torch.autograd.gradcheck(lambda x: region_mutual_information(x, targets, 255), logits)


def test_the_right_prediction_has_the_least():
    logits, targets = make_input()
    right = 8 * torch.nn.functional.one_hot(targets.clamp(max=2), 3).permute(0, 3, 1, 2) - 4.0
    losses = [region_mutual_information(x, targets, 255) for x in (right, logits, -right)]
    assert losses[0] < losses[1] - 1


@pytest.mark.parametrize("logit", [0.0, 200.0, -200.0])
def test_constant_probabilities_and_no_truth(logit):
    """Matrices of rank 0 or nearly: finite values and gradients."""
    _, targets = make_input()
    for labels in (targets, torch.full_like(targets, 255), torch.zeros_like(targets)):
        logits = torch.full((2, 3, *targets.shape[1:]), logit, requires_grad=True)
        loss = region_mutual_information(logits, labels, 255)
        loss.backward()
        assert loss.isfinite() and logits.grad.isfinite().all()


def test_a_matrix_without_factor_is_left_out(monkeypatch):
    """No matrix has a factor with a ridge below 0, as rounding might make it."""
    logits, targets = make_input()
    monkeypatch.setattr("ocr_panoptic.layers.rmi.RIDGE", -1e4)
    loss = region_mutual_information(logits, targets, 255)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6) and logits.grad.eq(0).all()


def test_a_diverged_network_is_seen():
    logits, targets = make_input()
    with torch.no_grad():
        logits[1, 2, 3, 4] = float("nan")
    assert region_mutual_information(logits, targets, 255).isnan()


def test_autocast_keeps_float64():
    logits, targets = make_input()
    single = logits.detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        found = region_mutual_information(single, targets, 255)
    assert found.item() == pytest.approx(expected(single.double(), targets, (1, 1, 1)), rel=1e-4)


def test_images_without_a_neighbourhood():
    logits, targets = make_input((7, 20))
    with pytest.raises(ValueError, match="at least 8 pixels on a side; these have 7 x 20"):
        region_mutual_information(logits, targets, 255)
    assert region_mutual_information(*make_input((8, 8)), 255).isfinite()
