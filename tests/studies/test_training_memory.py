"""Counted bytes of a training step."""

import torch

from studies.measurement import saved_bytes
from studies.training_memory import AllocatedBytes


def test_hand_worked():
    """1000 float32 are 4000 bytes: x and exp(x * x) are kept, x * x is freed."""
    x = torch.ones(1000, requires_grad=True)
    with AllocatedBytes() as allocated:
        y, saved = saved_bytes(lambda: (x * x).exp().sum())
        assert (saved, allocated.current, allocated.peak) == (8000, 4004, 8000)
        y.backward()
        assert allocated.current == 4004  # y and the gradient of x
    assert allocated.largest == 4000
    assert 8004 <= allocated.peak <= 4004 + 4 + 3 * 4000


def test_a_storage_counts_once():
    module = torch.nn.Linear(10, 10)
    x = torch.ones(5, 10, requires_grad=True)
    _, saved = saved_bytes(lambda: module(x) * x[:, :1].exp(), without=module)
    assert saved == (50 + 50 + 5) * 4  # x of the layer, its output, the exponential twice
    with AllocatedBytes() as allocated:
        y = x.detach() + 1
        views = [y.view(50), y.T, y[0]]
    assert allocated.current == 200 and len(views) == 3
