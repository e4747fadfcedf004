"""Gradient accumulation and the poly schedule."""

import pytest
import torch
from detectron2.utils.events import EventStorage
from torch import nn

from ocr_panoptic.engine import Trainer, load_config
from ocr_panoptic.engine.accumulation import AccumulatingTrainer

from .conftest import OCR_CONFIG


class Regression(nn.Module):
    """A loss that is a mean over images, in two terms."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2)

    def forward(self, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        y = self.linear(torch.stack(batch))
        return {"square": y.square().mean(), "absolute": y.abs().mean()}


def train(steps: int, iterations: int = 3) -> tuple[nn.Module, dict[str, float]]:
    generator = torch.Generator().manual_seed(1)
    loader = [list(torch.randn(6, 3, generator=generator)) for _ in range(iterations)]
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = AccumulatingTrainer(model, loader, optimizer, steps=steps, amp=False)
    with EventStorage() as storage:
        for trainer.iter in range(iterations):
            trainer.run_step()
        logged = {k: v.latest() for k, v in storage.histories().items() if "time" not in k}
    return model, logged


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_parts_of_a_batch_step_as_the_whole(steps):
    whole, logged_whole = train(1)
    parts, logged_parts = train(steps)
    for a, b in zip(whole.parameters(), parts.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert logged_parts == pytest.approx(logged_whole, rel=1e-5)
    assert set(logged_parts) == {"square", "absolute", "total_loss"}


def test_mixed_precision_on_a_cpu():
    """The step is that of products rounded to bfloat16, with weights and their steps in float32."""
    batch = list(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)))
    model, expected = Regression(), Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = AccumulatingTrainer(model, [batch], optimizer, steps=1, amp=True)
    with EventStorage():
        trainer.iter = 0
        trainer.run_step()
    assert not trainer.state_dict()["grad_scaler"]  # nothing to resume

    weight, bias = (p.detach().bfloat16() for p in expected.parameters())
    x = torch.stack(batch).bfloat16()
    y = torch.nn.functional.linear(x, weight, bias).float()
    assert (y - expected.linear(torch.stack(batch))).abs().max() > 1e-4  # the rounding shows
    gradient = ((2 * y + y.sign()) / y.numel()).bfloat16()  # of y^2 + |y|
    step = gradient.T.float() @ x.float()
    found = expected.linear.weight - model.linear.weight
    assert model.linear.weight.dtype == torch.float32
    torch.testing.assert_close(found / 0.1, step, rtol=2**-7, atol=2**-9)


def test_state_is_resumed():
    model = Regression()
    trainers = [
        AccumulatingTrainer(model, [], torch.optim.SGD(model.parameters(), 0.1), steps=2, amp=False)
        for _ in range(2)
    ]
    trainers[0].iter = 41
    trainers[1].load_state_dict(trainers[0].state_dict())
    assert trainers[1].iter == 41


def test_loss_scale_is_resumed_where_there_is_one():
    def make(scale: float) -> AccumulatingTrainer:
        model = Regression()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        trainer = AccumulatingTrainer(model, [], optimizer, steps=1, amp=False)
        trainer.iter = 0
        trainer.grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        return trainer

    resumed = make(8.0)
    state = make(32.0).state_dict()
    resumed.load_state_dict(state)
    assert resumed.grad_scaler.get_scale() == 32
    for absent in ({}, None):  # a run without AMP, or of Detectron2's SimpleTrainer
        resumed = make(8.0)
        resumed.load_state_dict({**state, "grad_scaler": absent})
        assert resumed.grad_scaler.get_scale() == 8


@pytest.mark.parametrize("power, ending", [(0.9, 0.0), (0.5, 0.0), (0.9, 0.3)])
def test_poly_schedule(power, ending):
    """(1 - iteration / max_iter) ** power from the first iteration on, hand-worked."""
    cfg = load_config(str(OCR_CONFIG), [])
    cfg.SOLVER.LR_SCHEDULER_NAME = "WarmupPolyLR"
    cfg.SOLVER.POLY_LR_POWER, cfg.SOLVER.POLY_LR_CONSTANT_ENDING = power, ending
    cfg.SOLVER.WARMUP_ITERS, cfg.SOLVER.MAX_ITER = 0, 10
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.02)
    scheduler = Trainer.build_lr_scheduler(cfg, optimizer)
    for iteration in range(10):
        expected = 0.02 * max((1 - iteration / 10) ** power, ending)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
        optimizer.step()
        scheduler.step()
