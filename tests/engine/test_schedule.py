"""A schedule that follows from the data, and training that ends when the metric stops rising."""

import math
import re

import pytest

from ocr_panoptic.config.files import load_config
from train_net import Trainer, main, setup

BEST = ["TEST.BEST_CHECKPOINT", "sem_seg/mIoU"]
SHARES = ["SOLVER.STEPS", "(0.75, 0.9)", "SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR"]


@pytest.fixture
def resolved(tiny_data, semantic_args):
    """Return a function that sets up a run on 8 images with batches of 2."""
    return lambda *opts: setup(semantic_args(*opts))[0]


@pytest.mark.parametrize(
    "max_iter, eval_period, expected",
    [
        (0, 0, (20, (15, 18), 2, 20)),  # too short for two evaluations
        (70, 0, (70, (52, 63), 1000, 24)),
        (30, 4, (30, (22, 27), 1000, 4)),  # explicit values win
    ],
)
def test_epochs(resolved, caplog, max_iter, eval_period, expected):
    opts = ["SOLVER.EPOCHS", 5, "SOLVER.MAX_ITER", max_iter, "SOLVER.WARMUP_ITERS", 1000, *SHARES]
    cfg = resolved(*opts, "TEST.EVALUATIONS", 3, "TEST.EVAL_PERIOD", eval_period)
    solver = cfg.SOLVER
    found = solver.MAX_ITER, solver.STEPS, solver.WARMUP_ITERS, cfg.TEST.EVAL_PERIOD
    assert found == expected and f"MAX_ITER: {expected[0]}" in cfg.dump()
    message = f"SOLVER.WARMUP_ITERS is 1000, but SOLVER.MAX_ITER is {max_iter}. The learning"
    assert (message in caplog.text) == (max_iter > 0)


@pytest.mark.parametrize(
    ("config", "opts", "expected"),
    [
        ("Custom-SemanticSegmentation/ocr_Lite0", ["SOLVER.MAX_ITER", 12], (12, 25)),
        ("Cityscapes-SemanticSegmentation/Base-Cityscapes-90k", ["SOLVER.EPOCHS", 3], (0, 3)),
        ("", ["SOLVER.EPOCHS", 3, "SOLVER.MAX_ITER", 12], (12, 3)),
    ],
)
def test_the_length_on_the_command_line_counts(config, opts, expected):
    solver = load_config(config, opts).SOLVER
    found = solver.MAX_ITER, solver.EPOCHS
    assert found == expected


@pytest.fixture
def run(tiny_data, semantic_args, monkeypatch):
    def make(values: list[float], *opts: object, flags: tuple[str, ...] = ()):
        found = iter(values)
        result = lambda *args, **kwargs: {"sem_seg": {"mIoU": next(found)}}  # noqa: E731
        monkeypatch.setattr(Trainer, "test", result)
        settings = ["SOLVER.MAX_ITER", 12, "SOLVER.CHECKPOINT_PERIOD", 0, "SOLVER.STEPS", "()"]
        return main(semantic_args(*settings, "TEST.EVAL_PERIOD", 2, *BEST, *opts, flags=flags))

    return make


@pytest.mark.slow
def test_a_training_ends_when_the_metric_stops_rising(run, tmp_path, caplog):
    assert run([1, 3, 2, 3], "TEST.PATIENCE", 2) == {"sem_seg": {"mIoU": 3}}
    message = r"mIoU has not improved in 2 evaluation\(s\). The best was 3 .*_best.pth, iteration 4"
    assert re.search(message, caplog.text)
    names = [path.name for path in sorted((tmp_path / "run").glob("*.pth"))]
    assert names[-2:] == ["model_0000007.pth", "model_best.pth"]
    # A resumed run restores its patience, so this run ends again at once.
    assert run([2], "TEST.PATIENCE", 2, flags=("--resume",)) == {"sem_seg": {"mIoU": 2}}
    assert [path.name for path in sorted((tmp_path / "run").glob("*.pth"))] == names
    # A higher TEST.PATIENCE lets it go on.
    # The interrupted evaluation is repeated first.
    assert run([2, 2.5], "TEST.PATIENCE", 3, flags=("--resume",)) == {"sem_seg": {"mIoU": 2.5}}
    assert (tmp_path / "run/model_0000009.pth").exists()


@pytest.mark.slow
def test_a_training_with_a_rising_metric_ends_as_planned(run, tmp_path):
    run([1, 0, 2, 1, 3, 4], "TEST.PATIENCE", 2)
    assert (tmp_path / "run/model_final.pth").exists()


@pytest.mark.slow
def test_a_metric_without_a_value_ends_the_patience(run, caplog):
    run([math.nan, math.nan], "TEST.PATIENCE", 2)
    assert "mIoU has not improved in 2 evaluation(s). It has never had a value." in caplog.text
