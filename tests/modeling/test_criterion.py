"""Sums of losses, and which prediction has which."""

import pytest
import torch

from support.segmentors import take_criterion

WEIGHTS = (1.0, 0.5, 2.0, 1.0, 3.0)


def losses(**arguments):
    generator = torch.Generator().manual_seed(0)
    coarse, refined = (torch.randn(2, 5, 6, 8, generator=generator) for _ in range(2))
    targets = torch.randint(5, (2, 24, 32), generator=generator)
    targets[:, :3] = 255
    criterion = take_criterion({"class_weights": WEIGHTS, **arguments})
    return [loss.item() for loss in criterion(coarse, refined, targets).values()]


def test_a_sum_is_the_weighted_sum_of_its_losses():
    single = {
        name: losses(loss_type=name, coarse_loss_type=name)
        for name in ("cross_entropy", "ohem", "binary_cross_entropy", "dice", "lovasz", "rmi")
    }
    found = losses(loss_type="0.8 cross_entropy + .2 lovasz+ohem", coarse_loss_type="rmi+3 dice")
    refined = [0.8 * single["cross_entropy"][0], 0.2 * single["lovasz"][0], single["ohem"][0]]
    assert found[0] == pytest.approx(sum(refined), rel=1e-5)
    assert found[1] == pytest.approx(single["rmi"][1] + 3 * single["dice"][1], rel=1e-5)
    # What the names stand for differs, and so do the two predictions.
    assert len({value for pair in single.values() for value in pair}) == 12


@pytest.mark.parametrize("weights", [(), WEIGHTS])
@pytest.mark.parametrize("name", ["binary_cross_entropy", "dice", "lovasz", "rmi"])
def test_class_weights_reach_every_loss(name, weights):
    weighted = losses(loss_type=name, coarse_loss_type=name, class_weights=weights)
    equal = losses(loss_type=name, coarse_loss_type=name, class_weights=())
    assert (weighted == equal) == (weights == ())


@pytest.mark.parametrize(
    "value", ["", "lovazs", "dice +", "2 3 dice", "x dice", "-1 dice", "0 dice", "nan dice"]
)
@pytest.mark.parametrize("key", ["loss_type", "coarse_loss_type"])
def test_bad_sums(key, value):
    with pytest.raises(ValueError, match=f"SEM_SEG_HEAD.{key.upper()} is .*such as 0.8 cross_entr"):
        losses(**{key: value})
