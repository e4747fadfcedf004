"""The cross-entropy in which rare classes count more, against loops in float64."""

import math

import pytest
import torch

from ocr_panoptic.layers import rarity_weighted_cross_entropy

IGNORE = 255


def reference(logits: torch.Tensor, targets: torch.Tensor) -> float:
    valid = [(n, y, x) for n, y, x in (targets != IGNORE).nonzero().tolist()]
    labels = [targets[place].item() for place in valid]
    weights = [1 - labels.count(k) / len(labels) for k in range(logits.shape[1])]
    total = weight = 0.0
    for (n, y, x), label in zip(valid, labels, strict=True):
        scores = logits[n, :, y, x].tolist()
        loss = math.log(sum(math.exp(s) for s in scores)) - scores[label]
        total += weights[label] * loss
        weight += weights[label]
    return total / weight


@pytest.mark.parametrize("classes", [2, 8])
def test_reference(classes):
    torch.manual_seed(0)
    logits = torch.randn(2, classes, 5, 7, dtype=torch.float64)
    targets = torch.randint(0, classes, (2, 5, 7))
    targets[:, 1] = IGNORE
    targets[:, 2:] *= torch.rand(2, 3, 7) < 0.3  # unequal shares
    found = rarity_weighted_cross_entropy(logits, targets, IGNORE)
    assert found.item() == pytest.approx(reference(logits, targets))
    found = rarity_weighted_cross_entropy(logits.float(), targets, IGNORE)
    assert found.item() == pytest.approx(reference(logits, targets), rel=1e-5)


@pytest.mark.parametrize("label", [IGNORE, 1])
def test_nothing_to_tell_apart_gives_no_loss_and_no_gradient(label):
    logits = torch.randn(1, 2, 3, 3, requires_grad=True)
    loss = rarity_weighted_cross_entropy(logits, torch.full((1, 3, 3), label), IGNORE)
    loss.backward()
    assert loss == 0 and not logits.grad.any()
