"""A run that is interrupted and resumed is the run that is not."""

import re
from pathlib import Path

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.engine import Trainer, setup
from ocr_panoptic.engine.resume import difference_table, position_after
from ocr_panoptic.engine.saved_state import checked_state
from ocr_panoptic.engine.training_state import continued_optimizer
from support.interrupted_runs import CONFIGS, assert_same, saved, train
from support.tiny_runs import PLAIN_CONFIG


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_resumed_run_equals_the_whole_one(tiny_data, make_args, tmp_path, kind):
    """Killed in iteration 3, after a checkpoint of iteration 1. Images, crops, dropout, momentum,
    schedule: everything in the checkpoint, and the losses. The seed is the saved one."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    uninterrupted = train(make_args, kind, whole, "SEED", 6)
    train(make_args, kind, parts, "SEED", 6, death=3)
    assert not (parts / "model_final.pth").exists()
    resumed = train(make_args, kind, parts, "SEED", -1, resume="auto")
    assert resumed.state.start == (2, 4)
    assert_same(saved(parts), saved(whole))
    losses = [t.storage.history("total_loss").latest() for t in (uninterrupted, resumed)]
    assert losses[0] == losses[1]


def resumable(iteration: int, **solver: object) -> dict:
    cfg = {"IMS_PER_BATCH": 8, "REFERENCE_WORLD_SIZE": 0} | solver
    images = iteration * cfg["IMS_PER_BATCH"]
    return {"iteration": iteration - 1, "images": images, "config": {"SOLVER": cfg}}


def position(now: dict, state: dict) -> tuple[int, int]:
    solver = {"IMS_PER_BATCH": 8, "REFERENCE_WORLD_SIZE": 0, "MAX_ITER": 1000} | now
    return tuple(position_after(CfgNode({"SOLVER": solver}), state))


def test_where_a_run_goes_on():
    """Iterations stay iterations, unless the schedule follows the number of processes: half of
    them take the same images in twice the iterations."""
    assert position({}, resumable(100)) == (100, 800)
    assert position({"IMS_PER_BATCH": 4}, resumable(100)) == (100, 800)
    eight = {"IMS_PER_BATCH": 16, "REFERENCE_WORLD_SIZE": 8}
    four = {"IMS_PER_BATCH": 8, "REFERENCE_WORLD_SIZE": 4}
    assert position(four, resumable(100, **eight)) == (200, 1600)
    assert position(eight, resumable(200, **four)) == (100, 1600)
    # 100 iterations of 8 images were followed by 50 of 4.
    state = {**resumable(150, IMS_PER_BATCH=4), "images": 1000}
    assert position({}, state) == (150, 1000)
    assert position({"MAX_ITER": 100}, resumable(100)) == (100, 800)
    with pytest.raises(ValueError, match="has 101 iterations, but SOLVER.MAX_ITER is 100. Set it"):
        position({"MAX_ITER": 100}, resumable(101))


def test_momentum_finds_its_parameter_in_other_groups():
    """Groups are of parameters with equal settings, so other settings change their order."""

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
    # One that has been frozen until then has none yet.
    after = make([b], [a])
    after.load_state_dict(continued_optimizer(state, ["a", "x"], ["b", "a"], after))
    assert torch.equal(after.state[a]["momentum_buffer"], a.grad) and b not in after.state


@pytest.mark.slow
def test_the_config_of_now_rules(tiny_data, make_args, tmp_path):
    """The learning rates are hand-worked: base * (1 - 2 / max) ** power."""
    log = tmp_path / "log.txt"
    train(make_args, "semantic", tmp_path, "SOLVER.MAX_ITER", 4, death=2)
    for opts, rate in (
        ((), 0.02 * (1 - 2 / 4) ** 0.9),
        (("SOLVER.MAX_ITER", 10), 0.02 * (1 - 2 / 10) ** 0.9),
        (("SOLVER.MAX_ITER", 2), 0),
        (("SOLVER.BASE_LR", 0.5), 0.5 * (1 - 2 / 4) ** 0.9),
        (("SOLVER.WARMUP_ITERS", 4, "SOLVER.WARMUP_FACTOR", 0.0), 0.02 * 0.5 * 0.5**0.9),
        (("SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR", "SOLVER.STEPS", "(1,)"), 0.02 * 0.1),
    ):
        seen = len(log.read_text())
        opts = ("SOLVER.MAX_ITER", 4, *opts)
        trainer = train(make_args, "semantic", tmp_path, *opts, death=2, resume=True)
        assert trainer.start_iter == 2
        for group in trainer.optimizer.param_groups:
            assert group["lr"] == pytest.approx(rate), opts
        new = log.read_text()[seen:]
        assert ("The run goes on with other settings" in new) == (len(opts) > 2)
    row = next(line for line in new.splitlines() if line.startswith("SOLVER.LR_SCHEDULER_NAME"))
    assert row.split() == ["SOLVER.LR_SCHEDULER_NAME", "WarmupPolyLR", "WarmupMultiStepLR"]


@pytest.fixture
def interrupted(tiny_data, semantic_args, tmp_path) -> Path:
    """The folder of a run with a checkpoint of iteration 2, made without training."""
    cfg, written = setup(semantic_args())
    run = tmp_path / "run"
    (run / "config.yaml").write_text(written)
    model = build_model(cfg)
    names = [name for name, _ in model.named_parameters()]
    optimizer = torch.optim.SGD(model.parameters(), 0.1).state_dict()
    trainer = {"optimizer": optimizer, "iteration": 1}
    state = {"iteration": 1, "images": 4, "seed": 3, "processes": 1, "config": cfg.dump()}
    state |= {"_trainer": trainer, "parameters": names}
    weights = model.state_dict()
    torch.save({"model": weights, "trainer": state, "iteration": 1}, run / "model_0000001.pth")
    (run / "last_checkpoint").write_text("model_0000001.pth")
    return run


@pytest.fixture
def resume(semantic_args):
    return lambda *opts: setup(semantic_args(*opts, flags=("--resume",)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "opts, fault",
    [
        (("MODEL.CONTEXT.NAME", "none"), "not in the model"),
        (("MODEL.OCR.CHANNELS", 64), r"in the file, \("),
        (("MODEL.CONTEXT.NAME", "ASP-OCR"), "missing in the file"),
    ],
)
def test_what_cannot_be_continued_is_refused_before_the_data_are_read(
    interrupted, resume, monkeypatch, opts, fault
):
    """The keys that differ are listed, harmless ones too, and the run's config is as it was."""
    monkeypatch.setattr(Trainer, "build_train_loader", None)
    config = (interrupted / "config.yaml").read_text()
    with pytest.raises(ValueError, match="cannot be resumed with this config") as error:
        resume(*opts, "SOLVER.BASE_LR", 0.5)
    message = str(error.value)
    assert re.search(fault, message) and f"MODEL.WEIGHTS {interrupted}/model_0000001" in message
    rows = [line.split()[0] for line in message.splitlines() if line.startswith(("MODEL", "SOLV"))]
    assert rows == [opts[0], "SOLVER.BASE_LR"]
    assert (interrupted / "config.yaml").read_text() == config


@pytest.mark.slow
def test_a_checkpoint_that_holds_no_training_is_refused(interrupted, resume):
    with pytest.raises(ValueError, match="has 2 iterations, but SOLVER.MAX_ITER is 1"):
        resume("SOLVER.MAX_ITER", 1, "SOLVER.STEPS", "()")
    file = interrupted / "model_0000001.pth"
    whole = file.read_bytes()
    for state in (None, 3, {"iteration": 1}):
        torch.save({"model": {"a": torch.zeros(1)}, "trainer": state}, file)
        with pytest.raises(ValueError, match="has weights, but not the state of a training"):
            resume()
    file.write_bytes(whole)
    saved = torch.load(file)
    saved["trainer"]["iteration"] = "x"
    torch.save(saved, file)
    with pytest.raises(ValueError, match="damaged state of its training: .* Remove it, and --res"):
        resume()
    file.write_bytes(whole[:3000] + b"\xff" * 200 + whole[3200:])
    with pytest.raises(ValueError, match=r"is not a checkpoint or .*\). Remove it, and --resume"):
        resume()


@pytest.mark.parametrize(
    "key, value, fault",
    [
        ("iteration", "x", "its iteration is 'x', not a number of at least 0"),
        ("iteration", -9, "its iteration is -9, not"),
        ("images", -3, "its images is -3, not"),
        ("seed", "a", "its seed is 'a', not"),
        ("processes", 0, "its processes is 0, not a number of at least 1"),
        ("config", 5, "its config is 5, not text"),
        ("config", "5: 6", "its config has the key 5"),
        ("config", "[", "its config is not valid YAML"),
        ("config", "[1]", r"its config is '\[1\]', not sections"),
        ("config", "a: &a [*a]", "refers to itself"),
        ("_trainer", 5, "its _trainer is 5, not the state of an optimizer"),
        ("_trainer", {"optimizer": {}}, "its _trainer's iteration is NoneType, not"),
        ("optimizer", {}, "its optimizer is dict, not groups"),
        ("optimizer", {"param_groups": []}, "its optimizer's state is NoneType, not"),
        ("parameters", 5, "its parameters is 5, not the names of its optimizer's"),
        ("parameters", "other", "its parameters is 'nothing.of.it', not a name of the model"),
        ("momentum", torch.zeros(7), r"its momentum of .* is \(7,\), not of the shape"),
        ("grad_scaler", {"scale": "x"}, "its grad_scaler is dict, not the state of a loss scale"),
    ],
)
def test_a_damaged_state_is_refused_in_a_line(key, value, fault):
    weight = torch.zeros(2, 3)
    optimizer = torch.optim.SGD([weight], 0.1).state_dict()
    config = "SOLVER: {IMS_PER_BATCH: 2, REFERENCE_WORLD_SIZE: 0}"
    state = {"iteration": 1, "images": 2, "seed": 0, "processes": 1, "config": config}
    state |= {"parameters": ["a"], "_trainer": {"optimizer": optimizer, "iteration": 1}}
    assert checked_state(state, {"a": (2, 3)})["config"]["SOLVER"]["IMS_PER_BATCH"] == 2
    if key == "momentum":
        optimizer["state"] = {0: {"momentum_buffer": value}}
    elif key in ("grad_scaler", "optimizer"):
        state["_trainer"][key] = value
    else:
        state[key] = ["nothing.of.it"] if value == "other" else value
    with pytest.raises(ValueError, match=fault) as error:
        checked_state(state, {"a": (2, 3)})
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_the_config_of_a_run_is_that_of_its_checkpoints(interrupted, semantic_args, resume):
    """A resumed run may change it; another training, once all is well with it, keeps it under
    another name, and is the one to be resumed from then on. An evaluation leaves it alone."""
    config, former = interrupted / "config.yaml", interrupted / "config.1.yaml"
    first, last = config.read_text(), interrupted / "last_checkpoint"
    file = last.read_text()

    setup(semantic_args("MODEL.WEIGHTS", interrupted / file, flags=("--eval-only",)))
    resume("SOLVER.BASE_LR", 0.5)
    with pytest.raises(ValueError, match="ACCUMULATION_STEPS 3 do not divide"):
        setup(semantic_args("SOLVER.ACCUMULATION_STEPS", 3))
    torch.save({"model": {"a": torch.zeros(1)}}, interrupted / "other.pth")
    anew = ("SOLVER.BASE_LR", 0.25, "MODEL.WEIGHTS", interrupted / "other.pth")
    with pytest.raises(ValueError, match="do not fit the model"):
        Trainer(*setup(semantic_args(*anew))).resume_or_load(False)
    assert (config.read_text(), last.read_text(), former.exists()) == (first, file, False)
    Trainer(*setup(semantic_args("SOLVER.BASE_LR", 0.25))).resume_or_load(False)
    assert "BASE_LR: 0.25" in config.read_text() and former.read_text() == first
    assert last.read_text() != file


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights, flags, fault",
    [
        ("page.pth", (), "page.pth is not a checkpoint .*a web page"),
        ("nowhere.pth", (), "The weights nowhere.pth do not exist"),
        ("nowhere.pth", ("--eval-only",), "The weights nowhere.pth do not exist"),
        ("", ("--eval-only",), "MODEL.WEIGHTS is empty, but inference needs"),
        ("", ("--resume",), "--resume found no checkpoint in OUTPUT_DIR="),
    ],
)
def test_unusable_weights(tiny_data, make_args, tmp_path, monkeypatch, weights, flags, fault):
    monkeypatch.chdir(tmp_path)
    Path("page.pth").write_text("<html>")
    error = ValueError if "page" in fault or "empty" in fault else FileNotFoundError
    with pytest.raises(error, match=fault):
        setup(make_args("MODEL.WEIGHTS", weights, flags=flags))


def test_another_number_of_processes_is_named():
    cfg = CfgNode({"OUTPUT_DIR": "here", "SOLVER": {"IMS_PER_BATCH": 8}})
    config = {"OUTPUT_DIR": "there", "SOLVER": {"IMS_PER_BATCH": 16}}
    state = {"config": config, "processes": 8}
    rows = [line.split() for line in difference_table(cfg, state).splitlines()[2:]]
    assert rows == [["SOLVER.IMS_PER_BATCH", "16", "8"], ["processes", "8", "1"]]
    assert not difference_table(cfg, {"config": cfg, "processes": 1})


@pytest.mark.slow
def test_auto_starts_or_resumes(tiny_data, make_args, tmp_path):
    for start in (0, 2):
        trainer = train(make_args, "semantic", tmp_path, death=2, resume="auto")
        assert trainer.start_iter == start
    best = tmp_path / "model_best.pth"
    torch.save({"best": {"sem_seg/mIoU": 99.0}}, best)
    anew = ("TEST.BEST_CHECKPOINT", "sem_seg/mIoU", "DATASETS.TEST", "('tiny_sem_val',)")
    train(make_args, "semantic", tmp_path, *anew, death=0)
    assert "has checkpoints of another training" in (tmp_path / "log.txt").read_text()
    # Killed before its first checkpoint, it is not that other training which goes on.
    assert (tmp_path / "model_0000001.pth").is_file() and not best.exists()
    with pytest.raises(FileNotFoundError, match="ended before its first one; .*_0000001.pth is of"):
        train(make_args, "semantic", tmp_path, death=0, resume=True)
    assert train(make_args, "semantic", tmp_path, death=0, resume="auto").start_iter == 0


def test_flags(make_args):
    def parse(*flags: str) -> tuple:
        args = make_args("SOLVER.MAX_ITER", 7, config=PLAIN_CONFIG, flags=flags)
        assert args.opts[-2:] == ["SOLVER.MAX_ITER", "7"]
        return args.resume, args.num_gpus

    assert parse() == (False, 1)
    assert parse("--resume") == (True, 1)
    assert parse("--resume", "auto") == ("auto", 1)
    assert parse("--resume", "auto", "--num-gpus", "2") == ("auto", 2)
    assert parse("--num-gpus", "2", "--resume") == (True, 2)
