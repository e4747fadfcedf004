"""A run that is interrupted and resumed equals an uninterrupted run."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from detectron2.config import CfgNode
from torch import nn

from ocr_panoptic.engine.resume import continued_optimizer, differences, position_after
from support.interrupted_runs import AT, STATEFUL, assert_same, run, saved
from support.tiny_runs import OCR_CONFIG, SEMANTIC_CONFIG, TINY, TINY_OCR
from train_net import Trainer, main, setup

ITERATIONS = 6
COMMON = [
    *("SOLVER.CHECKPOINT_PERIOD", 2, "SOLVER.MAX_ITER", ITERATIONS, "SOLVER.STEPS", "()"),
    # This schedule does not depend on the last iteration, which "end" changes.
    *("SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR", "SOLVER.WARMUP_ITERS", 3),
    *("MODEL.OCR.DROPOUT", 0.5, "SEED", 6, "DATASETS.TEST", "()"),
]
SETTINGS = {
    "panoptic": (
        OCR_CONFIG,
        [*TINY_OCR, "DATASETS.TRAIN", "('tiny_train',)", "DATALOADER.ASPECT_RATIO_GROUPING", True],
    ),
    "semantic": (SEMANTIC_CONFIG, STATEFUL),
}


def words(kind: str, *opts: object) -> list[object]:
    config, settings = SETTINGS[kind]
    flags = ["--config-file", config, "--resume", "auto"]
    return [*flags, *TINY, *settings, *COMMON, *opts]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Callable[[str, int], Path]:
    folders: dict[tuple[str, int], Path] = {}

    def make(kind: str, processes: int) -> Path:
        if (kind, processes) not in folders:
            folder = folders[kind, processes] = tmp_path_factory.mktemp("whole")
            assert run(words(kind), folder, processes=processes) == 0
        return folders[kind, processes]

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    "how, processes, kind",
    [
        ("kill", 2, "semantic"),
        ("signal", 2, "semantic"),
        ("signal", 1, "panoptic"),
        ("exception", 1, "semantic"),
        ("end", 1, "semantic"),
        ("kill in a save", 1, "semantic"),
        ("kill before the tag", 1, "semantic"),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_run(
    tiny_data, whole, tmp_path, how, processes, kind
):
    """The final checkpoint is equal bit by bit, also with another SEED; signals lose nothing."""
    first = ["SOLVER.MAX_ITER", AT] if how == "end" else []
    status = run(words(kind, *first), tmp_path, how=how, processes=processes)
    expected = {"signal": 143, "exception": 1, "end": 0}.get(how, -9)
    assert status == expected, (tmp_path / "stdout.txt").read_text()
    names = {path.name for path in tmp_path.glob("model_*.pth")}
    kept = {"signal": "model_0000003.pth", "end": "model_final.pth"}
    kept |= {"kill before the tag": "model_0000003.pth"}
    assert max(names) == kept.get(how, "model_0000001.pth")
    again = words(kind, "SEED", -1) if processes == 1 else words(kind)
    assert run(again, tmp_path, processes=processes) == 0, (tmp_path / "stdout.txt").read_text()
    assert_same(saved(tmp_path), saved(whole(kind, processes)))
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def resumable(iteration: int, **solver: object) -> dict:
    cfg = {"IMS_PER_BATCH": 8, "REFERENCE_WORLD_SIZE": 0, "OPTIMIZER": "SGD"} | solver
    images = iteration * cfg["IMS_PER_BATCH"]
    return {"iteration": iteration - 1, "images": images, "config": {"SOLVER": cfg}}


def position(now: dict, state: dict) -> tuple[int, int]:
    solver = {"IMS_PER_BATCH": 8, "REFERENCE_WORLD_SIZE": 0, "MAX_ITER": 1000, "OPTIMIZER": "SGD"}
    return tuple(position_after(CfgNode({"SOLVER": solver | now}), state))


def test_where_a_run_continues():
    """With REFERENCE_WORLD_SIZE, half of the processes need twice the iterations."""
    assert position({}, resumable(100)) == (100, 800)
    assert position({"IMS_PER_BATCH": 4}, resumable(100)) == (100, 800)
    eight = {"IMS_PER_BATCH": 16, "REFERENCE_WORLD_SIZE": 8}
    four = {"IMS_PER_BATCH": 8, "REFERENCE_WORLD_SIZE": 4}
    assert position(four, resumable(100, **eight)) == (200, 1600)
    assert position(eight, resumable(200, **four)) == (100, 1600)
    # 100 iterations with 8 images were followed by 50 iterations with 4 images.
    state = {**resumable(150, IMS_PER_BATCH=4), "images": 1000}
    assert position({}, state) == (150, 1000)
    assert position({"MAX_ITER": 100}, resumable(100)) == (100, 800)
    with pytest.raises(ValueError, match="is from iteration 101, but SOLVER.MAX_ITER is 100. Set"):
        position({"MAX_ITER": 100}, resumable(101))
    with pytest.raises(ValueError, match="OPTIMIZER is SGD, but the run .* AdamW"):
        position({}, resumable(1, OPTIMIZER="AdamW"))


def test_momentum_finds_its_parameter_in_other_groups():
    """Equal settings form a group of parameters, so other settings change their order."""

    def make(*groups: list) -> torch.optim.SGD:
        return torch.optim.SGD([{"params": group} for group in groups], lr=0.1, momentum=0.9)

    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(2))
    before = make([a], [b])
    a.grad, b.grad = torch.ones(1), torch.full((2,), 3.0)
    before.step()
    after = make([b, a])
    after.param_groups[0]["lr"] = 0.7
    state = before.state_dict()
    after.load_state_dict(continued_optimizer(state, ["a", "b"], ["b", "a"], after))
    assert torch.equal(after.state[a]["momentum_buffer"], a.grad)
    assert torch.equal(after.state[b]["momentum_buffer"], b.grad)
    assert after.param_groups[0]["lr"] == 0.7
    # A parameter that was frozen until then has no momentum yet.
    after = make([b], [a])
    after.load_state_dict(continued_optimizer(state, ["a", "x"], ["b", "a"], after))
    assert torch.equal(after.state[a]["momentum_buffer"], a.grad) and b not in after.state


def test_changed_settings_are_listed_in_a_line():
    cfg = CfgNode({"OUTPUT_DIR": "here", "SOLVER": {"IMS_PER_BATCH": 8}})
    config = {"OUTPUT_DIR": "there", "SOLVER": {"IMS_PER_BATCH": 16}}
    changed = differences(cfg, {"config": config, "processes": 8})
    assert changed == "SOLVER.IMS_PER_BATCH 8 (was 16), processes 1 (was 8)"
    assert not differences(cfg, {"config": cfg, "processes": 1})


@pytest.fixture
def interrupted(tiny_data, short_args, tmp_path) -> Path:
    """Return the folder of a run with checkpoints of iterations 1 and 2."""
    main(short_args("TEST.EVAL_PERIOD", 0, "SOLVER.MAX_ITER", 2))
    return tmp_path / "run"


@pytest.fixture
def resume(short_args) -> Callable[..., Trainer]:
    def make(*opts: object, flag: object = True) -> Trainer:
        cfg, start = setup(short_args(*opts, flags=("--resume" if flag else "--overwrite",)))
        trainer = Trainer(cfg)
        trainer.resume_or_load(start)
        return trainer

    return make


@pytest.mark.slow
def test_the_present_config_counts(interrupted, resume, caplog):
    """The learning rates are worked out by hand: base * (1 - 2 / max) ** power."""
    for opts, rate in (
        ((), 0.02 * (1 - 2 / 4) ** 0.9),
        (("SOLVER.MAX_ITER", 10), 0.02 * (1 - 2 / 10) ** 0.9),
        (("SOLVER.MAX_ITER", 2), 0),
        (("SOLVER.BASE_LR", 0.5), 0.5 * (1 - 2 / 4) ** 0.9),
        (("SOLVER.WARMUP_ITERS", 4, "SOLVER.WARMUP_FACTOR", 0.0), 0.02 * 0.5 * 0.5**0.9),
        (("SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR", "SOLVER.STEPS", "(1,)"), 0.02 * 0.1),
    ):
        caplog.clear()
        trainer = resume(*opts)
        assert trainer.start_iter == 2
        for group in trainer.optimizer.param_groups:
            assert group["lr"] == pytest.approx(rate), opts
    assert "SOLVER.LR_SCHEDULER_NAME WarmupMultiStepLR (was WarmupPolyLR)" in caplog.text


@pytest.mark.slow
def test_refused_continuations(interrupted, resume):
    config = (interrupted / "config.yaml").read_text()
    with pytest.raises(ValueError, match="CONTEXT.NAME is none, but was OCR"):
        resume("MODEL.CONTEXT.NAME", "none")
    with pytest.raises(ValueError, match="the run was trained with SGD"):
        resume("SOLVER.OPTIMIZER", "AdamW")
    torch.save({"model": {"a": torch.zeros(1)}, "trainer": 3}, interrupted / "model_final.pth")
    with pytest.raises(ValueError, match="contains weights, but not the training state"):
        resume()
    assert (interrupted / "config.yaml").read_text() == config


@pytest.mark.slow
def test_another_training_in_the_folder(interrupted, resume, short_args):
    """A new training keeps the former config under another name; an evaluation changes none."""
    config, former = interrupted / "config.yaml", interrupted / "config.1.yaml"
    first, last = config.read_text(), interrupted / "last_checkpoint"
    file, best = last.read_text(), interrupted / "model_best.pth"
    torch.save({"best": {"sem_seg/mIoU": 99.0}}, best)
    setup(short_args("MODEL.WEIGHTS", interrupted / file, flags=("--eval-only",)))
    torch.save({"model": {"a": torch.zeros(1)}}, interrupted / "other.pth")
    anew = ("SOLVER.BASE_LR", 0.25, "MODEL.WEIGHTS", interrupted / "other.pth")
    with pytest.raises(ValueError, match="do not fit the model"):
        resume(*anew, flag=False)
    assert (config.read_text(), last.read_text(), former.exists()) == (first, file, False)
    resume("SOLVER.BASE_LR", 0.25, "TEST.BEST_CHECKPOINT", "sem_seg/mIoU", flag=False)
    assert "BASE_LR: 0.25" in config.read_text() and former.read_text() == first
    assert last.read_text() != file and not best.exists()
    assert (interrupted / "metrics.1.json").read_text().count("total_loss") == 2
    assert not (interrupted / "metrics.json").read_text()
    assert {path.name for path in interrupted.glob("model_0*.pth")} == set()
    # If it is killed before its first checkpoint, the other training must not go on instead.
    with pytest.raises(FileNotFoundError, match="no checkpoint to continue from"):
        resume()
    trainer = Trainer(setup(short_args(flags=("--resume", "auto")))[0])
    trainer.resume_or_load("auto")
    assert trainer.start_iter == 0


@pytest.mark.slow
def test_with_and_without_an_average(tiny_data, short_args, resume, tmp_path):
    """A new average starts at the trained weights; without average the trained weights go on."""
    average = ("MODEL.EMA.ENABLED", True, "MODEL.EMA.DECAY", 0.75)
    main(short_args("TEST.EVAL_PERIOD", 0, *average, "SOLVER.MAX_ITER", 2))
    trained = saved(tmp_path / "run")["trainer"]["trained_weights"]
    without = resume("TEST.EVAL_PERIOD", 0, "SOLVER.MAX_ITER", 3)
    assert_same(dict(without.model.state_dict()), dict(trained))
    without.train()
    trained = saved(tmp_path / "run")["model"]
    again = resume(*average)
    for model in (again.model, again.evaluated_model):
        assert_same(dict(model.state_dict()), dict(trained))
