"""The gather in parts against the equation over all pixels at once, in float64."""

import pytest
import torch

from ocr_panoptic.layers import RunningGather, gather_regions
from support import equations


def gathered(x, m, *widths: int) -> torch.Tensor:
    gather = RunningGather()
    for part in zip(x.split(widths, dim=3), m.split(widths, dim=3), strict=True):
        gather.add(*part)
    return gather.regions()


@pytest.mark.parametrize("widths", [(5,), (1, 4), (2, 2, 1), (1, 1, 1, 1, 1)])
def test_parts_give_the_regions_of_the_whole(widths):
    x, m = equations.inputs()
    found = gathered(x, m, *widths)
    torch.testing.assert_close(found, equations.gather(x, m), rtol=1e-12, atol=1e-12)


def test_hand_worked():
    """Weights exp(0) : exp(ln 3) of two pixels that come apart: f = 1/4 * 2 + 3/4 * 6."""
    x = torch.tensor([2.0, 6.0]).reshape(1, 1, 1, 2)
    m = torch.tensor([0.0, 3.0]).clamp(min=1).log().reshape(1, 1, 1, 2)
    assert gathered(x, m, 1, 1).item() == pytest.approx(5.0)


@pytest.mark.parametrize("shift", [-3e4, 3e4])
def test_a_tile_with_far_higher_logits_takes_all(shift):
    """exp(3e4) overflows float64: without the running maximum there were NaN."""
    x, m = ((64 * t).round().float() / 64 for t in equations.inputs())  # exact after the shift
    part = slice(3, None) if shift > 0 else slice(0, 3)
    expected = equations.gather(x[..., part], m[..., part])
    m[..., 3:] += shift
    torch.testing.assert_close(gathered(x, m, 3, 2), expected, rtol=1e-5, atol=1e-5)


def test_half_precision_and_autocast():
    x, m = (t.bfloat16() for t in equations.inputs())
    with torch.autocast("cpu", torch.bfloat16):
        found = gathered(x, m, 2, 3)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, gather_regions(x, m))


def test_refusals():
    x, m = equations.inputs()
    with pytest.raises(ValueError, match="no pixels"):
        RunningGather().regions()
    with pytest.raises(ValueError, match="same size"):
        RunningGather().add(x, m[..., 1:])
    gather = RunningGather()
    gather.add(x, m)
    with pytest.raises(ValueError, match=r"\[2, 8, 4\].*\[2, 8, 5\]"):
        gather.add(x, m[:, 1:])
