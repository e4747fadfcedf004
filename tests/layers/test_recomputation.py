"""Parts that are computed again in the backward pass."""

import torch
from torch import nn

from ocr_panoptic.layers import run_part
from studies.measurement import saved_bytes


class TwoParts(nn.Module):
    """A part within a part, with dropout and norms that have already seen a batch."""

    def __init__(self, recompute: bool):
        super().__init__()
        torch.manual_seed(0)
        self.recompute = recompute
        self.calls = 0
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout2d(0.5))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return run_part(self, self._outer, x)

    def _outer(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return run_part(self, self.second, self.first(x)).square()


def results(module: nn.Module, *inputs: torch.Tensor) -> tuple[list, int]:
    """Return output, gradients and buffers of two steps with equal random numbers; saved bytes."""
    torch.manual_seed(1)
    tensors = []
    for _ in range(2):
        leaves = [x.clone().requires_grad_() for x in inputs]
        y, saved = saved_bytes(lambda leaves=leaves: module(*leaves), without=module)
        tensors += [y, *torch.autograd.grad(y.square().sum(), [*leaves, *module.parameters()])]
    return [*tensors, *(b.clone() for b in module.buffers()), torch.rand(2)], saved


def test_results_equal_a_single_computation():
    x = torch.randn(2, 3, 12, 12)
    plain, again = TwoParts(False), TwoParts(True)
    (expected, saved), (found, kept) = results(plain, x), results(again, x)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert (plain.calls, again.calls) == (2, 4)
    assert kept == x.nbytes < saved / 4
    norms = [m for m in again.modules() if isinstance(m, nn.BatchNorm2d)]
    assert [(norm.momentum, norm.num_batches_tracked.item()) for norm in norms] == [(0.1, 2)] * 2

    with torch.no_grad():
        again(x)
        again.eval()(x)
    assert again.calls == 6
