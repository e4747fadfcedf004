"""Gradient accumulation, mixed precision, and the average of the weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.utils.events import EventStorage
from timm.utils import ModelEmaV3
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ocr_panoptic.engine.hooks import Averaging
from ocr_panoptic.engine.step import AccumulatingTrainer
from ocr_panoptic.evaluation.stored import evaluation_folder
from support.interrupted_runs import assert_same, saved
from train_net import Trainer, setup


class Regression(nn.Module):
    """A model with two loss terms, which are means over images."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2)

    def forward(self, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        y = self.linear(torch.stack(batch))
        return {"square": y.square().mean(), "absolute": y.abs().mean()}


def trainer_of(
    batches: list, *, model: type[nn.Module] = Regression, sgd: dict | None = None, **options
) -> AccumulatingTrainer:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), **{"lr": 0.1, **(sgd or {})})
    trainer = AccumulatingTrainer(
        network, batches, optimizer, **{"steps": 1, "amp": False, **options}
    )
    trainer.iter = 0
    return trainer


def train(steps: int, iterations: int = 3) -> tuple[nn.Module, dict[str, float]]:
    generator = torch.Generator().manual_seed(1)
    batches = [list(torch.randn(6, 3, generator=generator)) for _ in range(iterations)]
    trainer = trainer_of(batches, sgd={"momentum": 0.9}, steps=steps)
    with EventStorage() as storage:
        for trainer.iter in range(iterations):
            trainer.run_step()
        logged = {k: v.latest() for k, v in storage.histories().items() if "time" not in k}
    return trainer.model, logged


@pytest.mark.parametrize("steps", [2, 3])
def test_parts_of_a_batch_step_like_the_whole(steps):
    whole, logged_whole = train(1)
    parts, logged_parts = train(steps)
    for a, b in zip(whole.parameters(), parts.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert logged_parts == pytest.approx(logged_whole, rel=1e-5)
    assert set(logged_parts) == {"square", "absolute", "total_loss"}


def test_gradients_of_all_parts_are_clipped_before_the_step():
    def clip() -> None:
        gradients = [parameter.grad for parameter in trainer.model.parameters()]
        torch.testing.assert_close(gradients, whole)
        for gradient in gradients:
            gradient.fill_(2.0)

    data = [list(torch.linspace(-1, 3, 18).view(6, 3))]
    model = Regression()
    sum(model(data[0]).values()).backward()
    before, whole = [*model.parameters()], [parameter.grad for parameter in model.parameters()]
    trainer = trainer_of(data, steps=2, clip=clip)
    with EventStorage():
        trainer.run_step()
    for parameter, first in zip(trainer.model.parameters(), before, strict=True):
        torch.testing.assert_close(parameter, first - 0.1 * 2.0)


def test_mixed_precision_on_a_cpu():
    """By hand: 1.0035 is 1 in bfloat16, so y = 1 + 1 + 1; weights and steps are float32."""
    trainer = trainer_of([list(torch.full((6, 3), 1.0035))], sgd={"lr": 1.0}, amp=True)
    model = trainer.model
    with torch.no_grad():
        model.linear.weight.fill_(1.0035)
        model.linear.bias.zero_()
    with EventStorage() as storage:
        trainer.run_step()
        assert storage.history("square").latest() == 9  # 9.13 in float32
        assert storage.history("absolute").latest() == 3
    assert not trainer.state_dict()["grad_scaler"]  # there is no state to resume
    # The gradient of a weight is the mean of (2 y + 1) x over 12 values y, 6 from this weight: 3.5
    # in bfloat16, 3.544 in float32.
    assert model.linear.weight.dtype == torch.float32
    step = 1.0035 - model.linear.weight.detach()
    torch.testing.assert_close(step, torch.full((2, 3), 3.5), rtol=2**-8, atol=0)


@pytest.mark.parametrize("precision, bfloat16", [("auto", 0), ("float16", 0), ("bfloat16", 1)])
def test_precision_on_a_gpu(monkeypatch, pretended_gpu, precision, bfloat16):
    """The loss is scaled only for float16, which a CPU refuses."""
    scalers, dtype = [], torch.bfloat16 if bfloat16 else torch.float16
    monkeypatch.setattr(torch.amp, "GradScaler", lambda _, enabled: scalers.append(enabled))
    with FakeTensorMode(), torch.device("cuda"):
        trainer = trainer_of([], amp=True, precision=precision)
    assert (trainer.autocast.args, scalers) == (("cuda", dtype), [not bfloat16])
    if precision == "float16":
        with pytest.raises(ValueError, match="SOLVER.AMP.PRECISION is float16"):
            trainer_of([], amp=True, precision=precision)


def test_keys_of_the_trainer(small_cfg, monkeypatch):
    monkeypatch.setattr(Trainer, "build_train_loader", classmethod(lambda cls, cfg: []))
    keys = ["SOLVER.GATHER_METRIC_PERIOD", "7", "SOLVER.AMP.ENABLED", "True"]
    keys += ["SOLVER.ACCUMULATION_STEPS", "2", "SOLVER.CLIP_GRADIENTS.ENABLED", "True"]
    trainer = Trainer(small_cfg("ocr", *keys))
    steps = trainer._trainer
    assert (steps.gather_metric_period, steps.steps) == (7, 2) and callable(steps.clip)
    assert (steps.autocast.args, steps.autocast.keywords) == (
        ("cpu", torch.bfloat16),
        {"enabled": True},
    )
    weights = [p for p in trainer.model.parameters() if p.dim() == 4 and min(p.shape) > 1]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_loss_scale_is_resumed_if_it_was_saved():
    def make(scale: float) -> AccumulatingTrainer:
        trainer = trainer_of([])
        trainer.grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        return trainer

    resumed = make(8.0)
    state = make(32.0).state_dict()
    resumed.load_state_dict(state)
    assert resumed.grad_scaler.get_scale() == 32
    for absent in ({}, None):  # a run without AMP
        resumed = make(8.0)
        resumed.load_state_dict({**state, "grad_scaler": absent})
        assert resumed.grad_scaler.get_scale() == 8


EMA = ("MODEL.EMA.ENABLED", True, "MODEL.EMA.DECAY", 0.75, "DATALOADER.NUM_WORKERS", 0)
# A network of timm's own tests, half a million parameters.
SMALL = ("MODEL.TIMM.NAME", "test_resnet", "SOLVER.LAYER_DECAY", 0.7)
ADAMW = (
    *("SOLVER.OPTIMIZER", "AdamW", "SOLVER.BASE_LR", 1e-3, "SOLVER.WEIGHT_DECAY", 0.05),
    *("SOLVER.LR_SCHEDULER_NAME", "WarmupCosineLR", "SOLVER.WARMUP_ITERS", 2),
)


def test_the_average_equals_timms():
    """They are equal to the last bit, also after precise statistics replace a norm's statistics."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    averaging = Averaging(model, decay=0.75)
    nn.init.normal_(averaging.module[0].weight)  # as if loaded
    averaging.begin()
    timms = ModelEmaV3(model, decay=0.75)
    for average in (averaging, timms):
        average.module[1].running_mean = torch.arange(4.0)
    for _ in range(3):
        model(torch.randn(2, 3, 8, 8))
        before, last = averaging.module[0].weight.clone(), nn.init.normal_(model[0].weight)
        timms.update(model)
        averaging.after_step()
    assert_same(dict(averaging.module.state_dict()), dict(timms.module.state_dict()))
    expected = 0.75 * before.double() + 0.25 * last.double()
    torch.testing.assert_close(averaging.module[0].weight.double(), expected)
    assert averaging.module[1].num_batches_tracked == 3
    assert not any(p.requires_grad for p in averaging.module.parameters())


@pytest.mark.slow
def test_the_average_is_evaluated_and_saved(tiny_data, semantic_args, tmp_path):
    """The last and the best checkpoint, --eval-only and the result file have the same weights."""
    opts = (*SMALL, *ADAMW, *EMA, "SOLVER.MAX_ITER", 3, "TEST.BEST_CHECKPOINT", "sem_seg/mIoU")
    opts += ("TEST.PRECISE_BN.ENABLED", True, "TEST.PRECISE_BN.NUM_ITER", 2)
    trainer = Trainer(setup(semantic_args(*opts))[0])
    trainer.resume_or_load(False)
    trainer.train()
    run = tmp_path / "run"
    final, best = saved(run), saved(run, "model_best")
    assert_same(best["model"], final["model"])
    mean = "backbone.body.bn1.running_mean"
    trained = final["trainer"]["trained_weights"]
    assert not torch.equal(final["model"][mean], trained[mean])  # by PreciseBN
    written = json.loads((evaluation_folder(run, "tiny_sem_val") / "metrics.json").read_text())

    def evaluate(weights: Path) -> tuple[dict, str]:
        other = ("OUTPUT_DIR", tmp_path / weights.stem, "MODEL.WEIGHTS", weights)
        args = semantic_args(*opts, *other, flags=("--eval-only",))
        results = Trainer.evaluate(setup(args)[0])
        folder = evaluation_folder(tmp_path / weights.stem, "tiny_sem_val")
        info = json.loads((folder / "metrics.json").read_text())
        return results["sem_seg"], info["run"]["weights_sha256"]

    results, sha256 = evaluate(run / "model_final.pth")
    np.testing.assert_equal(results, trainer._last_eval_results["sem_seg"])  # NaN is NaN
    assert sha256 == written["run"]["weights_sha256"]
    torch.save({"model": trained}, tmp_path / "trained.pth")
    assert evaluate(tmp_path / "trained.pth")[1] != sha256
