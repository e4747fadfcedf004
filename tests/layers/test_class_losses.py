"""Losses of each class against the rest: float64 references that follow their definitions."""

import numpy as np
import pytest
import torch

from ocr_panoptic.layers import binary_cross_entropy, dice_loss, lovasz_softmax

CLASSES = 4
WEIGHTS = (0.5, 1.0, 3.0, 2.0)


def make_input(dtype=torch.float64):
    """Two images, rows of them ignored; class 3 is nowhere."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2, CLASSES, 6, 7, generator=generator, dtype=torch.float64)
    targets = torch.randint(CLASSES - 1, (2, 6, 7), generator=generator)
    targets[0, :2], targets[1, :, 3] = 255, 255
    return logits.to(dtype).requires_grad_(), targets


def valid_pixels(logits, targets):
    """Logits [P, K] and labels [P] of the pixels that count."""
    logits = logits.detach().double().numpy().transpose(0, 2, 3, 1).reshape(-1, CLASSES)
    targets = targets.numpy().ravel()
    return logits[targets != 255], targets[targets != 255]


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def mean_of_present(losses, labels, weights):
    present = [k for k in range(CLASSES) if (labels == k).any()]
    return sum(weights[k] * losses(k) for k in present) / sum(weights[k] for k in present)


def expected_binary_cross_entropy(logits, labels, weights):
    p = 1 / (1 + np.exp(-logits))
    y = labels[:, None] == np.arange(CLASSES)
    return -(np.where(y, np.log(p), np.log(1 - p)) * weights).sum() / (len(labels) + 1)


def expected_dice(logits, labels, weights):
    p = softmax(logits)

    def loss(k):
        y = (labels == k).astype(float)
        return 1 - 2 * (p[:, k] * y).sum() / ((p[:, k] ** 2).sum() + (y**2).sum())

    return mean_of_present(loss, labels, weights)


def expected_lovasz(logits, labels, weights):
    """
    The Lovász extension as the integral of the set function over thresholds: the Jaccard loss of
    the pixels whose error is above t, for t from 0 to 1.
    """
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


CASES = [
    (binary_cross_entropy, expected_binary_cross_entropy),
    (dice_loss, expected_dice),
    (lovasz_softmax, expected_lovasz),
]


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("loss, expected", CASES)
def test_value(loss, expected, weights):
    logits, targets = make_input()
    found = loss(logits, targets, 255, None if weights is None else torch.tensor(weights).double())
    reference = expected(*valid_pixels(logits, targets), weights or (1,) * CLASSES)
    assert found.item() == pytest.approx(reference, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [loss for loss, _ in CASES])
def test_gradient(loss):
    logits, targets = make_input()
    assert torch.autograd.gradcheck(lambda x: loss(x, targets, 255), logits)
    gradient = torch.autograd.grad(loss(logits, targets, 255), logits)[0]
    assert gradient[0, :, :2].eq(0).all() and gradient[0, :, 2:].ne(0).any()


@pytest.mark.parametrize("loss", [loss for loss, _ in CASES])
def test_nothing_to_learn(loss):
    """All pixels ignored: 0, and so are the gradients. A sure and right prediction: 0."""
    logits, targets = make_input()
    empty = loss(logits, torch.full_like(targets, 255), 255)
    assert empty.item() == 0 and torch.autograd.grad(empty, logits)[0].eq(0).all()
    right = 50 * torch.nn.functional.one_hot(targets.clamp(max=2), CLASSES).permute(0, 3, 1, 2)
    assert loss(right.double() - 25, targets, 255).item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("loss", [loss for loss, _ in CASES])
def test_float32_in_autocast(loss):
    logits, targets = make_input(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(logits, targets, 255)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(loss(logits.double(), targets, 255).item(), rel=1e-5)
