"""Checkpoints are whole or absent, and the best and the last are kept."""

import json
import math
import os
import resource
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.engine import HookBase, TrainerBase
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer
from ocr_panoptic.engine import Trainer, hooks, setup
from ocr_panoptic.engine.hooks import BestModel, Checkpoints, Evaluation
from ocr_panoptic.engine.run_info import weights_sha256
from ocr_panoptic.engine.trained_model import build_trained_model
from train_net import main


@pytest.fixture
def checkpointer(tmp_path) -> SafeCheckpointer:
    return SafeCheckpointer(nn.Linear(30, 30), str(tmp_path))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_full_disk(checkpointer, tmp_path):
    """A limit of the size of files is its like that needs no disk."""
    checkpointer.save("model_0000001")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        message = r"model_0000002.pth could not be written.*model_0000001.pth.*--resume"
        with pytest.raises(OSError, match=message):
            checkpointer.save("model_0000002")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)
    assert names(tmp_path) == {"model_0000001.pth", "last_checkpoint"}


def test_a_name_changes_when_the_disk_has_the_content(checkpointer, monkeypatch):
    """The file, then the name of the one to be resumed from, each in one step."""
    steps, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: steps.append("disk") or fsync(file))
    monkeypatch.setattr(
        os, "replace", lambda old, new: steps.append(Path(new).name) or replace(old, new)
    )
    checkpointer.save("model_0000001")
    assert steps == ["disk", "model_0000001.pth", "disk", "disk", "last_checkpoint", "disk"]


LAST, TAG = "model_0000003.pth", "last_checkpoint"
DAMAGES = [  # file, what it becomes (None: removed), and the checkpoint that is found
    *((LAST, b"", 2), (LAST, "half", 2), (LAST, None, 2)),
    *((TAG, None, 3), (TAG, b"", 3), (TAG, b"../elsewhere/model_final.pth", 3)),
]


@pytest.mark.slow
@pytest.mark.parametrize("file, content, expected", DAMAGES)
def test_the_newest_whole_one_is_resumed_from(
    checkpointer, tmp_path, caplog, file, content, expected
):
    for number in (1, 2, 3):
        checkpointer.save(f"model_000000{number}")
        os.utime(tmp_path / f"model_000000{number}.pth", (number, number))
    checkpointer.save("model_best", tag=False)
    whole = (tmp_path / file).read_bytes()
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    found = checkpointer.get_checkpoint_file()
    assert found == str(tmp_path / f"model_000000{expected}.pth")
    assert "the newest whole one is" in caplog.text
    for path in tmp_path.glob("*.pth"):
        path.write_bytes(b"")
    assert not checkpointer.get_checkpoint_file()


def test_what_killed_writers_left_is_removed(checkpointer, tmp_path):
    checkpointer.save("model_0000001")
    (tmp_path / ".model_0000002.pth.123.tmp").write_bytes(b"half")
    (tmp_path / ".other.tmp").write_bytes(b"of somebody else")
    checkpointer.remove_unfinished()
    assert names(tmp_path) == {"model_0000001.pth", "last_checkpoint", ".other.tmp"}


@pytest.mark.slow
def test_old_ones_are_pruned(tiny_data, short_args, tmp_path):
    """SOLVER.CHECKPOINTS_TO_KEEP; those that a run before it has left count, too."""
    opts = ["SOLVER.CHECKPOINTS_TO_KEEP", 2, "TEST.BEST_CHECKPOINT", "sem_seg/mIoU"]

    def kept() -> list[str]:
        return sorted(path.stem[6:].lstrip("0") for path in (tmp_path / "run").glob("model_*.pth"))

    main(short_args(*opts))
    assert kept() == ["1", "2", "best", "final"]
    # The evaluation after the last iteration is the only one.
    best = torch.load(tmp_path / "run/model_best.pth", weights_only=True)
    result = json.loads((tmp_path / "run/inference/tiny_sem_val/metrics.json").read_text())
    assert best["iteration"] == best["trainer"]["iteration"] == 3
    assert best["best"] == {"sem_seg/mIoU": result["sem_seg"]["mIoU"]}
    assert (tmp_path / "run/last_checkpoint").read_text() == "model_final.pth"
    main(short_args(*opts, "SOLVER.MAX_ITER", 6, flags=("--resume",)))
    assert kept() == ["2", "4", "best", "final"]


class Idle(TrainerBase):
    """A trainer whose iterations take a minute each."""

    def run_step(self) -> None:
        clock.now += 60


clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)


@pytest.mark.slow
@pytest.mark.parametrize(
    "minutes, period, saved",
    [(0, 5, [4, 9]), (3, 0, [2, 5, 8]), (3, 5, [2, 4, 7, 9]), (0.5, 0, list(range(10)))],
)
def test_a_checkpoint_that_is_due_by_time(tmp_path, monkeypatch, minutes, period, saved):
    """SOLVER.CHECKPOINT_MINUTES after the last one."""
    monkeypatch.setattr(hooks, "time", clock)
    trainer, checkpointer = Idle(), SafeCheckpointer(nn.Linear(1, 1), str(tmp_path))
    solver = {"CHECKPOINT_PERIOD": period, "CHECKPOINT_MINUTES": minutes, "CHECKPOINTS_TO_KEEP": 0}
    cfg = CfgNode({"SOLVER": solver, "TEST": {"EVAL_PERIOD": 0}})
    trainer.register_hooks([Checkpoints(checkpointer, cfg, checkpointer.model)])
    trainer.train(0, 11)
    expected = {*(f"model_{i:07d}.pth" for i in saved), "model_final.pth", "last_checkpoint"}
    assert names(tmp_path) == expected


def test_the_best_model(checkpointer, tmp_path, caplog):
    """TEST.BEST_CHECKPOINT chooses; a resumed run knows how good the best was."""
    best = BestModel(checkpointer, "panoptic_seg/PQ")

    def kept(*values: float) -> int:
        for iteration, value in enumerate(values):
            with torch.no_grad():
                checkpointer.model.weight.fill_(value)
            best.update({"panoptic_seg": {"PQ": value, "SQ": 99.0}}, iteration)
        return torch.load(tmp_path / "model_best.pth", weights_only=True)["iteration"]

    assert kept(3.0, 5.0, 4.0, math.nan, 5.0) == 1
    assert torch.load(tmp_path / "model_best.pth")["model"]["weight"][0, 0] == 5
    assert not (tmp_path / "last_checkpoint").exists()
    best = BestModel(checkpointer, "panoptic_seg/PQ")
    best.resume()
    assert kept(4.5) == 1
    assert kept(1.0, 2.0, 6.0) == 2
    other = BestModel(checkpointer, "panoptic/PQ")
    other.resume()
    other.update({"panoptic_seg": {"PQ": 9.0}}, 8)
    assert "panoptic/PQ, which the evaluation does not have" in caplog.text


class Breaks(HookBase):
    """Ends the run within the evaluation after iteration 2."""

    def after_step(self):
        if self.trainer.iter == 1:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_missed_evaluation_is_made_up_for(tiny_data, short_args, tmp_path, monkeypatch):
    evaluated = []
    monkeypatch.setattr(Trainer, "test", lambda *_, **__: evaluated.append(1) or {})
    opts = ["SOLVER.CHECKPOINT_PERIOD", 100, "TEST.EVAL_PERIOD", 2]
    trainer = Trainer(*setup(short_args(*opts)))
    trainer.register_hooks([Breaks()])
    (evaluation,) = (i for i, h in enumerate(trainer._hooks) if isinstance(h, Evaluation))
    trainer._hooks.insert(evaluation, trainer._hooks.pop())
    trainer.resume_or_load(False)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert (tmp_path / "run/model_0000001.pth").is_file() and not evaluated
    main(short_args(*opts, flags=("--resume",)))
    assert len(evaluated) == 2  # after iterations 2 and 4


@pytest.mark.slow
def test_evaluation_of_the_last_checkpoint(tiny_data, short_args, tmp_path):
    main(short_args("TEST.EVAL_PERIOD", 0))
    (tmp_path / "run/model_final.pth").write_bytes(b"")
    cfg, _ = setup(short_args(flags=("--eval-only", "--resume", "auto")))
    assert str(tmp_path / "run/model_0000002.pth") == cfg.MODEL.WEIGHTS
    copy = build_trained_model(cfg)
    cfg.defrost()
    cfg.TEST.OPTIMIZED = False
    model = build_trained_model(cfg)
    saved = torch.load(tmp_path / "run/model_0000002.pth", weights_only=True)["model"]
    weights = model.network.state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in weights.items())
    assert weights_sha256(copy) == weights_sha256(model), "so that a report knows its evaluation"
