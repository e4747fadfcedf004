"""Checkpoints are whole or absent, the best and last are kept, and signals save a checkpoint."""

import json
import math
import os
import resource
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.engine import HookBase, TrainerBase
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer
from ocr_panoptic.engine import hooks
from ocr_panoptic.engine.hooks import BestModel, Checkpoints, Evaluation, StopOnSignal
from ocr_panoptic.engine.setup import locked_folder
from ocr_panoptic.predict.run_info import weights_sha256
from ocr_panoptic.predict.trained_model import build_trained_model
from support.forked import Forked
from support.tiny_runs import ROOT
from train_net import Trainer, main, setup


@pytest.fixture
def checkpointer(tmp_path) -> SafeCheckpointer:
    return SafeCheckpointer(nn.Linear(30, 30), str(tmp_path))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_full_disk_and_killed_writers(checkpointer, tmp_path, monkeypatch):
    steps, fsync, replace = [], os.fsync, os.replace
    with monkeypatch.context() as patch:  # the file gets its name when the disk has the content
        patch.setattr(os, "fsync", lambda file: steps.append("disk") or fsync(file))
        named = lambda old, new: steps.append(Path(new).name) or replace(old, new)  # noqa: E731
        patch.setattr(os, "replace", named)
        checkpointer.save("model_0000001")
    assert steps == ["disk", "model_0000001.pth", "disk", "disk", "last_checkpoint", "disk"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # acts like a full disk
        message = r"model_0000002.pth could not be written.*model_0000001.pth.*--resume"
        with pytest.raises(OSError, match=message):
            checkpointer.save("model_0000002")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)
    assert names(tmp_path) == {"model_0000001.pth", "last_checkpoint"}
    (tmp_path / ".model_0000002.pth.123.tmp").write_bytes(b"half")
    (tmp_path / ".other.tmp").write_bytes(b"of somebody else")
    checkpointer.remove_unfinished()
    assert names(tmp_path) == {"model_0000001.pth", "last_checkpoint", ".other.tmp"}


LAST, TAG = "model_0000003.pth", "last_checkpoint"
DAMAGES = [  # file; new content (None: removed); checkpoint found
    *((LAST, b"", 2), (LAST, "half", 2), (LAST, None, 2)),
    *((TAG, None, 3), (TAG, b"", 3), (TAG, b"\xff\xfe", 3)),
    (TAG, b"../elsewhere/model_final.pth", 3),
]


@pytest.mark.parametrize("file, content, expected", DAMAGES)
def test_the_newest_whole_checkpoint_is_resumed(
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
    assert "Using the newest complete checkpoint" in caplog.text
    for path in tmp_path.glob("*.pth"):
        path.write_bytes(b"")
    assert not checkpointer.get_checkpoint_file()


@pytest.mark.slow
def test_old_checkpoints_are_removed(tiny_data, short_args, tmp_path):
    """SOLVER.CHECKPOINTS_TO_KEEP also counts checkpoints that an earlier run has left."""
    opts = ["SOLVER.CHECKPOINTS_TO_KEEP", 2, "TEST.BEST_CHECKPOINT", "sem_seg/mIoU"]

    def kept() -> list[str]:
        return sorted(path.stem[6:].lstrip("0") for path in (tmp_path / "run").glob("model_*.pth"))

    main(short_args(*opts))
    assert kept() == ["1", "2", "best", "final"]
    # Only the last iteration is evaluated.
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


@pytest.mark.parametrize(
    "minutes, period, saved", [(0, 5, [4, 9]), (3, 0, [2, 5, 8]), (3, 5, [2, 4, 7, 9])]
)
def test_checkpoints_by_time(tmp_path, monkeypatch, minutes, period, saved):
    """A checkpoint is saved if the last is older than SOLVER.CHECKPOINT_MINUTES."""
    monkeypatch.setattr(hooks, "time", clock)
    trainer, checkpointer = Idle(), SafeCheckpointer(nn.Linear(1, 1), str(tmp_path))
    solver = {"CHECKPOINT_PERIOD": period, "CHECKPOINT_MINUTES": minutes, "CHECKPOINTS_TO_KEEP": 0}
    cfg = CfgNode({"SOLVER": solver, "TEST": {"EVAL_PERIOD": 0}})
    trainer.register_hooks([Checkpoints(checkpointer, cfg, checkpointer.model)])
    trainer.train(0, 11)
    expected = [*(f"model_{i:07d}.pth" for i in saved), "model_final.pth"]
    assert sorted(path.name for path in tmp_path.glob("*.pth")) == expected


def test_the_best_model(checkpointer, tmp_path, caplog):
    """TEST.BEST_CHECKPOINT chooses it; a resumed run knows the best value so far."""
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
    for metric in ("panoptic/PQ", "panoptic_seg/PQ"):  # unknown; NaN
        assert f"TEST.BEST_CHECKPOINT {metric} has no value" in caplog.text


class Breaks(HookBase):
    """A hook that ends the run during the evaluation after iteration 2."""

    def after_step(self):
        if self.trainer.iter == 1:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_missed_evaluation_is_repeated(tiny_data, short_args, tmp_path, monkeypatch):
    evaluated = []
    monkeypatch.setattr(Trainer, "test", lambda *_, **__: evaluated.append(1) or {})
    opts = ["SOLVER.CHECKPOINT_PERIOD", 100, "TEST.EVAL_PERIOD", 2]
    trainer = Trainer(setup(short_args(*opts))[0])
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


@pytest.mark.slow
def test_a_signal_saves_and_ends_with_its_status(tiny_data, short_args, tmp_path):
    """
    The signal reaches all processes of the run, also the loader's, as from a terminal.

    Meanwhile a second run in the same folder stops.
    """
    long = ("SOLVER.MAX_ITER", 100000, "SOLVER.CHECKPOINT_PERIOD", 100000)
    args = short_args(*long, "DATALOADER.NUM_WORKERS", 1)
    words = [sys.executable, ROOT / "train_net.py", "--config-file", args.config_file, *args.opts]
    with open(tmp_path / "printed.txt", "w") as file:
        process = Forked(words, stdout=file, start_new_session=True)
    log = tmp_path / "run/metrics.json"
    while not (log.is_file() and log.stat().st_size) and process.poll() is None:
        time.sleep(0.1)
    with pytest.raises(ValueError, match="is in use by another training"):
        locked_folder(str(tmp_path / "run")).__enter__()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=300) == 128 + signal.SIGINT
    (checkpoint,) = (tmp_path / "run").glob("model_*.pth")
    assert torch.load(checkpoint, weights_only=True)["iteration"] + 1 >= 20
    log = (tmp_path / "run/log.txt").read_text()
    assert "Stopped by signal 2" in log and "Traceback" not in log
    with locked_folder(str(tmp_path / "run")):  # the folder is free again
        setup(short_args(flags=("--overwrite",)))


def test_a_signal_during_an_evaluation_ends_it():
    """A checkpoint was saved before the evaluation."""
    stopping, before = StopOnSignal(), signal.getsignal(signal.SIGINT)
    with stopping.listening():
        with pytest.raises(SystemExit) as end, stopping.at_once():
            signal.raise_signal(signal.SIGTERM)
        assert end.value.code == 143 and stopping.agreed_signal() == 0
        for _ in range(2):  # torchrun repeats the signal to the group
            signal.raise_signal(signal.SIGINT)
        assert stopping.agreed_signal() == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before
