"""Losses of hard examples, weighted losses, sums of losses, and their predictions."""

import math

import pytest
import torch

from ocr_panoptic.modeling.losses import cross_entropy, hard_cross_entropy
from support.segmentors import take_criterion

WEIGHTS = (1.0, 0.5, 2.0, 1.0, 3.0)
NAMES = ("cross_entropy", "ohem", "binary_cross_entropy", "dice", "lovasz", "rmi")


def losses(**arguments):
    generator = torch.Generator().manual_seed(0)
    coarse, refined = (torch.randn(2, 5, 6, 8, generator=generator) for _ in range(2))
    targets = torch.randint(5, (2, 24, 32), generator=generator)
    targets[:, :3] = 255
    criterion = take_criterion({"class_weights": WEIGHTS, **arguments})
    return [loss.item() for loss in criterion(coarse, refined, targets).values()]


def test_a_sum_is_the_weighted_sum_of_its_losses():
    single = {name: losses(loss_type=name, coarse_loss_type=name) for name in NAMES}
    found = losses(loss_type="0.8 cross_entropy + .2 lovasz+ohem", coarse_loss_type="rmi+3 dice")
    refined = [0.8 * single["cross_entropy"][0], 0.2 * single["lovasz"][0], single["ohem"][0]]
    assert found[0] == pytest.approx(sum(refined), rel=1e-5)
    assert found[1] == pytest.approx(single["rmi"][1] + 3 * single["dice"][1], rel=1e-5)
    # The names have different losses, and the two predictions differ.
    assert len({value for pair in single.values() for value in pair}) == 12


@pytest.mark.parametrize("name", NAMES)
def test_class_weights_reach_every_loss(name):
    weighted, equal = (
        losses(loss_type=name, coarse_loss_type=name, class_weights=weights)
        for weights in (WEIGHTS, ())
    )
    assert weighted[0] != equal[0] and weighted[1] != equal[1]


@pytest.mark.parametrize(
    "value", ["", "lovazs", "dice +", "2 3 dice", "x dice", "-1 dice", "0 dice", "nan dice"]
)
@pytest.mark.parametrize("key", ["loss_type", "coarse_loss_type"])
def test_bad_sums(key, value):
    with pytest.raises(ValueError, match=f"SEM_SEG_HEAD.{key.upper()} is .*such as 0.8 cross_entr"):
        losses(**{key: value})


def logits_of(probabilities: list[float]) -> torch.Tensor:
    """Return logits of a row of pixels with these probabilities of class 0, of two classes."""
    p = torch.tensor(probabilities)
    return torch.stack([p.log(), (1 - p).log()])[None, :, None, :].requires_grad_()


@pytest.mark.parametrize(
    "threshold, min_kept, kept",
    [
        (0.5, 1, [0.1, 0.3]),  # below the threshold
        (0.5, 3, [0.1, 0.3, 0.6]),  # the three lowest, even above the threshold
        (0.05, 2, [0.1, 0.3]),
        (0.95, 1, [0.1, 0.3, 0.6, 0.9]),
        (0.5, 9, [0.1, 0.3, 0.6, 0.9]),  # fewer pixels than min_kept
    ],
)
def test_hard_examples_hand_worked(threshold, min_kept, kept):
    """The true class has probability 0.9, 0.1, 0.6 and 0.3; an ignored pixel has 0.01."""
    logits = logits_of([0.9, 0.1, 0.6, 0.3, 0.01])
    targets = torch.tensor([[[0, 0, 0, 0, 255]]])
    loss = hard_cross_entropy(logits, targets, 255, threshold=threshold, min_kept=min_kept)
    expected = -sum(math.log(p) for p in kept) / len(kept)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert (logits.grad[0, 0, 0] != 0).sum() == len(kept)


def test_hard_examples_of_ignored_pixels_and_of_all():
    logits, options = logits_of([0.2, 0.7, 0.4]), {"threshold": 0.9, "min_kept": 10}
    ignored = hard_cross_entropy(logits, torch.full((1, 1, 3), 255), 255, **options)
    ignored.backward()
    assert ignored.item() == 0 and logits.grad.eq(0).all()
    targets = torch.zeros(1, 1, 3, dtype=torch.long)
    every = hard_cross_entropy(logits, targets, 255, **options)
    assert every.item() == pytest.approx(cross_entropy(logits, targets, 255).item())


def test_class_weights_of_hard_examples():
    """Truth 0 with probability 0.1 and truth 1 with probability 0.4 are kept."""
    weights = torch.tensor([0.5, 1.0, 4.0])
    logits, targets = logits_of([0.1, 0.6, 0.7]), torch.tensor([[[0, 1, 0]]])
    hard = hard_cross_entropy(logits, targets, 255, weights, threshold=0.5, min_kept=1)
    expected = -(0.5 * math.log(0.1) + 1.0 * math.log(0.4)) / 2
    assert hard.item() == pytest.approx(expected, rel=1e-5)
