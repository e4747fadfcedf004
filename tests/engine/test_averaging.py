"""MODEL.EMA.ENABLED and EMA.DECAY: what is averaged, evaluated, saved and resumed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from timm.utils import ModelEmaV3
from torch import nn

from ocr_panoptic.engine import Trainer, setup
from ocr_panoptic.engine.hooks import Averaging
from ocr_panoptic.formats.run_folder import evaluation_folder
from support.interrupted_runs import assert_same, saved

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


def test_it_equals_timms():
    """To the last bit, also after precise statistics have taken the place of a batch norm's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    averaging, timms = Averaging(model, decay=0.9), ModelEmaV3(model, decay=0.9)
    averaging.begin()
    for average in (averaging, timms):
        average.module[1].running_mean = torch.arange(4.0)
    for _ in range(3):
        model(torch.randn(2, 3, 8, 8))
        nn.init.normal_(model[0].weight)
        timms.update(model)
        averaging.after_step()
    assert_same(dict(averaging.module.state_dict()), dict(timms.module.state_dict()))


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
