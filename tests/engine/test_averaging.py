"""MODEL.EMA.ENABLED and EMA.DECAY: what is averaged, evaluated, saved and resumed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from timm.utils import ModelEmaV3
from torch import nn

from ocr_panoptic.engine import Trainer, setup
from ocr_panoptic.engine.averaging import Averaging
from ocr_panoptic.engine.saved_state import checked_state
from ocr_panoptic.formats.run_folder import evaluation_folder
from support.interrupted_runs import assert_same, saved, train

EMA = ("MODEL.EMA.ENABLED", True, "MODEL.EMA.DECAY", 0.75, "DATALOADER.NUM_WORKERS", 0)
# A network of timm's own tests, half a million parameters.
SMALL = ("MODEL.TIMM.NAME", "test_resnet", "SOLVER.LAYER_DECAY", 0.7)
ADAMW = (
    *("SOLVER.OPTIMIZER", "AdamW", "SOLVER.BASE_LR", 1e-3, "SOLVER.WEIGHT_DECAY", 0.05),
    *("SOLVER.LR_SCHEDULER_NAME", "WarmupCosineLR", "SOLVER.WARMUP_ITERS", 2),
)


def test_the_recursion():
    """NumPy's float64 average from the first weights is equal; batch norms' statistics are averaged
    too, and their counter is the model's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    averaging = Averaging(model, decay=0.75)
    nn.init.normal_(model[0].weight)  # weights are loaded before the training
    averaging.begin()
    expected = {k: v.double().numpy().copy() for k, v in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).pow(3).mean().backward()
        optimizer.step()
        averaging.after_step()
        for name, value in model.state_dict().items():
            expected[name] = 0.75 * expected[name] + 0.25 * value.double().numpy()
    found = averaging.module.state_dict()
    assert found.pop("1.num_batches_tracked") == 20
    for name, value in found.items():
        np.testing.assert_allclose(value.numpy(), expected[name], rtol=1e-5, atol=1e-6)
    assert not torch.equal(found["0.weight"], model[0].weight)
    assert not any(p.requires_grad for p in averaging.module.parameters())


def test_a_step_asks_for_no_state_dict_and_equals_timms(monkeypatch):
    """To the last bit, also after precise statistics have taken the place of a batch norm's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    averaging, timms = Averaging(model, decay=0.9), ModelEmaV3(model, decay=0.9)
    for average in (averaging, timms):
        average.module[1].running_mean = torch.arange(4.0)
    for _ in range(3):
        model(torch.randn(2, 3, 8, 8))
        nn.init.normal_(model[0].weight)
        timms.update(model)
        with monkeypatch.context() as patch:
            patch.setattr(nn.Module, "state_dict", lambda _: pytest.fail("this takes long"))
            averaging.after_step()
    assert_same(dict(averaging.module.state_dict()), dict(timms.module.state_dict()))


@pytest.mark.slow
def test_a_resumed_run_equals_the_whole_one(tiny_data, make_args, tmp_path):
    """Killed in iteration 3, after a checkpoint of iteration 1; to the last bit. It accumulates
    gradients."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    kind, opts = "semantic", (*SMALL, *ADAMW, *EMA, "SOLVER.AMP.ENABLED", True)
    train(make_args, kind, whole, *opts)
    train(make_args, kind, parts, *opts, death=3)
    assert not (parts / "model_final.pth").exists()
    resumed = train(make_args, kind, parts, *opts, resume="auto")
    assert resumed.state.start == (2, 4)
    assert_same(saved(parts), saved(whole))
    # Weights, their average and the optimizer's state are what a plain float64 recursion says.
    files = [saved(whole, f"model_{i:07d}") for i in (1, 3)] + [saved(whole)]
    average = [floats(file["model"]) for file in files]
    trained = [floats(file["trainer"]["trained_weights"]) for file in files]
    for name in average[0]:
        expected = 0.75 * average[1][name].double() + 0.25 * trained[2][name].double()
        assert torch.allclose(average[2][name].double(), expected, atol=1e-5), name
    assert any(not torch.equal(average[2][name], trained[2][name]) for name in average[2])
    # Another training begins with them, and so does its average.
    weights = ("MODEL.WEIGHTS", whole / "model_final.pth", "SOLVER.MAX_ITER", 1, "SOLVER.STEPS", ())
    train(make_args, kind, tmp_path / "other", *opts, *weights)
    other = saved(tmp_path / "other")
    for name, value in floats(other["model"]).items():
        now = other["trainer"]["trained_weights"][name].double()
        expected = 0.75 * average[2][name].double() + 0.25 * now
        assert torch.allclose(value.double(), expected, atol=1e-5), name


def floats(weights: dict) -> dict:
    return {k: v for k, v in weights.items() if v.is_floating_point()}


@pytest.mark.slow
def test_the_average_is_what_is_evaluated_and_saved(tiny_data, semantic_args, tmp_path):
    """Its batch norms' statistics are those that PreciseBN measures with it; the last and the best
    checkpoint, --eval-only and the result file are of the same weights."""
    opts = (*SMALL, *ADAMW, *EMA, "SOLVER.MAX_ITER", 3, "TEST.BEST_CHECKPOINT", "sem_seg/mIoU")
    opts += ("TEST.PRECISE_BN.ENABLED", True, "TEST.PRECISE_BN.NUM_ITER", 2)
    trainer = Trainer(*setup(semantic_args(*opts)))
    trainer.resume_or_load(False)
    trainer.train()
    run = tmp_path / "run"
    final, best = saved(run), saved(run, "model_best")
    assert_same(best["model"], final["model"])
    mean = "backbone.body.bn1.running_mean"
    assert not torch.equal(final["model"][mean], final["trainer"]["trained_weights"][mean])
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
    trained = tmp_path / "trained.pth"
    torch.save({"model": final["trainer"]["trained_weights"]}, trained)
    assert evaluate(trained)[1] != sha256


@pytest.mark.slow
def test_resumed_with_and_without_an_average(tiny_data, make_args, tmp_path):
    """An average begins as the weights that are trained; without one those go on."""
    folder = tmp_path / "run"
    alone = (*SMALL, "DATALOADER.NUM_WORKERS", 0)
    small = (*SMALL, *EMA)
    train(make_args, "semantic", folder, *small, death=2)
    half = saved(folder, "model_0000001")
    trainer = train(make_args, "semantic", folder, *alone, death=2, resume=True)
    trained = half["trainer"]["trained_weights"]
    assert_same(dict(trainer.model.state_dict()), dict(trained))
    other = tmp_path / "other"
    train(make_args, "semantic", other, *alone, death=2)
    trainer = train(make_args, "semantic", other, *small, death=2, resume=True)
    plain = saved(other, "model_0000001")["model"]
    for model in (trainer.model, trainer.evaluated_model):
        assert_same(dict(model.state_dict()), dict(plain))
    # Another optimizer has nothing of what it goes on with.
    fault = r"has the state of SGD \(momentum_buffer of .*is AdamW, which"
    with pytest.raises(ValueError, match=fault):
        train(make_args, "semantic", folder, *small, *ADAMW, death=2, resume=True)


@pytest.mark.parametrize("fault", [7, {}, {"a": torch.zeros(2)}, {"a": 1.0}, {"b": torch.zeros(3)}])
def test_damaged_weights_beside_the_average(fault):
    state = {"iteration": 1, "images": 2, "seed": 0, "processes": 1, "config": "", "parameters": []}
    state["_trainer"] = {"iteration": 1, "optimizer": {}}
    with pytest.raises(ValueError, match="its trained_weights"):
        checked_state({**state, "trained_weights": fault}, {"a": (3,)})
