"""Checkpoints are whole or absent, the best and the last are kept, and what ends a run."""

import copy
import errno
import fcntl
import json
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.engine import HookBase, TrainerBase
from detectron2.utils import comm
from detectron2.utils.events import EventStorage
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer, last_checkpoint
from ocr_panoptic.engine import Trainer, hooks, loss_log, run_claim, setup
from ocr_panoptic.engine import trainer as trainer_module
from ocr_panoptic.engine.agreement import Poll
from ocr_panoptic.engine.hooks import BestModel, Checkpoints, StopOnSignal
from ocr_panoptic.engine.loss_log import LossLog
from ocr_panoptic.engine.run_info import weights_sha256
from ocr_panoptic.engine.stopping import Stopping
from ocr_panoptic.engine.trained_model import build_trained_model
from ocr_panoptic.engine.training_state import TrainingState
from support.forked import Forked, run_forked
from support.interrupted_runs import assert_same
from support.tiny_runs import ROOT, SEMANTIC_CONFIG, TINY_SEMANTIC
from train_net import main

TINY_RUN = [*TINY_SEMANTIC, "SOLVER.MAX_ITER", 4, "SOLVER.CHECKPOINT_PERIOD", 1]


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


TAGS = {
    "tag of nothing": b"",
    "tag of bytes": b"\xff\xfe\x1b[2J" * 200,
    "tag of another folder": b"../elsewhere/model_final.pth",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", ["empty", "half", "missing", "untagged", "tag is a folder", *TAGS]
)
def test_the_newest_whole_one_is_resumed_from(checkpointer, tmp_path, caplog, damage):
    for number in (1, 2, 3):
        checkpointer.save(f"model_000000{number}")
        os.utime(tmp_path / f"model_000000{number}.pth", (number, number))
    checkpointer.save("model_best", tag=False)
    last = tmp_path / "model_0000003.pth"
    tag = tmp_path / "last_checkpoint"
    if damage == "missing":
        last.unlink()
    elif damage == "untagged":
        tag.unlink()
    elif damage == "tag is a folder":
        tag.unlink()
        tag.mkdir()
    elif damage in TAGS:
        tag.write_bytes(TAGS[damage])
    else:
        content = last.read_bytes()
        last.write_bytes(content[: len(content) // 2] if damage == "half" else b"")
    expected = 2 if damage in ("empty", "half", "missing") else 3
    found = checkpointer.get_checkpoint_file()
    assert found == str(tmp_path / f"model_000000{expected}.pth")
    assert "the newest whole one is" in caplog.text and caplog.text.isascii()
    for path in tmp_path.glob("*.pth"):
        path.write_bytes(b"")
    assert not checkpointer.has_checkpoint()


def test_what_killed_writers_left_is_removed(checkpointer, tmp_path):
    checkpointer.save("model_0000001")
    (tmp_path / ".model_0000002.pth.123.tmp").write_bytes(b"half")
    (tmp_path / ".other.tmp").write_bytes(b"of somebody else")
    checkpointer.remove_unfinished()
    assert names(tmp_path) == {"model_0000001.pth", "last_checkpoint", ".other.tmp"}


@pytest.mark.slow
def test_old_ones_are_pruned(tiny_data, make_args, tmp_path):
    """SOLVER.CHECKPOINTS_TO_KEEP; those that a run before it has left count, too."""
    opts = [*TINY_RUN, "SOLVER.CHECKPOINTS_TO_KEEP", 2, "TEST.BEST_CHECKPOINT", "sem_seg/mIoU"]

    def numbered() -> set[str]:
        return {path.name for path in (tmp_path / "run").glob("model_*.pth")}

    main(make_args(*opts, config=SEMANTIC_CONFIG))
    assert numbered() == {
        *("model_0000001.pth", "model_0000002.pth", "model_final.pth", "model_best.pth")
    }
    # The evaluation after the last iteration is the only one.
    best = torch.load(tmp_path / "run/model_best.pth", weights_only=True)
    result = json.loads((tmp_path / "run/inference/tiny_sem_val/metrics.json").read_text())
    assert best["iteration"] == best["trainer"]["iteration"] == 3
    assert best["best"] == {"sem_seg/mIoU": result["sem_seg"]["mIoU"]}
    assert (tmp_path / "run/last_checkpoint").read_text() == "model_final.pth"
    main(make_args(*opts, "SOLVER.MAX_ITER", 6, config=SEMANTIC_CONFIG, flags=("--resume",)))
    assert numbered() == {
        *("model_0000002.pth", "model_0000004.pth", "model_final.pth", "model_best.pth")
    }


def written_slowly(monkeypatch) -> tuple[threading.Event, list[int]]:
    """``torch.save`` waits for the event; the list has how many calls are in it, after each."""
    save, may_end, busy, lock = torch.save, threading.Event(), [0], threading.Lock()

    def count(step: int) -> None:
        with lock:
            busy.append(busy[-1] + step)

    def slow(data: object, path: Path) -> None:
        count(1)
        assert may_end.wait(30)
        save(data, path)
        count(-1)

    monkeypatch.setattr(torch, "save", slow)
    return may_end, busy


@pytest.mark.slow
def test_a_file_in_the_background_has_the_weights_of_its_moment(
    checkpointer, tmp_path, monkeypatch
):
    """The optimizer's too; what follows waits: two are never written at once."""
    may_end, busy = written_slowly(monkeypatch)
    model = checkpointer.model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    checkpointer.add_checkpointable("optimizer", optimizer)
    kept = []
    for number in (1, 2):
        model(torch.ones(30)).sum().backward()
        optimizer.step()
        kept.append(copy.deepcopy([model.state_dict(), optimizer.state_dict()]))
        if number == 2:
            threading.Timer(0.2, may_end.set).start()
        checkpointer.save(f"model_000000{number}", keep=1, background=True)
        if number == 1:
            assert names(tmp_path) <= {".model_0000001.pth.tmp"}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    assert checkpointer.get_checkpoint_file() == str(tmp_path / "model_0000002.pth")
    assert names(tmp_path) == {"model_0000002.pth", "last_checkpoint"} and max(busy) == 1
    found = torch.load(tmp_path / "model_0000002.pth", weights_only=True)
    assert_same([found["model"], found["optimizer"]], kept[1])


def test_an_error_in_the_background_ends_the_next_save(checkpointer, tmp_path, monkeypatch):
    def full(data: object, path: Path) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        checkpointer.save("model_0000001", background=True)
        with pytest.raises(OSError, match=r"model_0000001.pth could not be written \(No space"):
            checkpointer.save("model_0000002")
    checkpointer.wait()
    checkpointer.save("model_0000003")
    assert names(tmp_path) == {"model_0000003.pth", "last_checkpoint"}


class Idle(TrainerBase):
    """A trainer whose iterations take a minute each."""

    def run_step(self) -> None:
        clock.now += 60

    def check_finite(self) -> None:
        pass


clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)


class LatePoll:
    """The answers of several processes."""

    asked = 0

    def largest(self, number: int) -> int:
        answer, self.asked = self.asked, number
        return answer


@pytest.mark.slow
@pytest.mark.parametrize(
    "minutes, period, saved, poll",
    [
        (0, 5, [4, 9], Poll),
        (3, 0, [2, 5, 8], Poll),
        (3, 5, [2, 4, 7, 9], Poll),
        (0.5, 0, 10, Poll),
        (3, 0, [3, 7], LatePoll),
    ],
)
def test_a_checkpoint_that_is_due_by_time(tmp_path, monkeypatch, minutes, period, saved, poll):
    monkeypatch.setattr(hooks, "Poll", poll)
    monkeypatch.setattr(hooks, "time", clock)
    trainer, checkpointer = Idle(), SafeCheckpointer(nn.Linear(1, 1), str(tmp_path))
    solver = {"CHECKPOINT_PERIOD": period, "CHECKPOINT_MINUTES": minutes, "CHECKPOINTS_TO_KEEP": 0}
    cfg = CfgNode({"SOLVER": solver, "TEST": {"EVAL_PERIOD": 0}})
    trainer.register_hooks([Checkpoints(checkpointer, cfg)])
    trainer.train(0, 11)
    saved = saved if isinstance(saved, list) else range(saved)
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
    best.update({}, 7)  # in the other processes
    other = BestModel(checkpointer, "panoptic/PQ")
    other.resume()
    other.update({"panoptic_seg": {"PQ": 9.0}}, 8)
    assert "panoptic/PQ, which the evaluation does not have (similar: panoptic_seg/PQ)" in (
        caplog.text
    )


@pytest.mark.parametrize("file", ["model_0000001", "model_best"])
def test_a_best_model_goes_with_the_former_training_alone(checkpointer, tmp_path, caplog, file):
    """One that was kept alone is not of a training that this one writes over."""
    for name in {file, "model_best"}:
        checkpointer.save(name, tag=False)
    cfg = CfgNode({"OUTPUT_DIR": str(tmp_path), "MODEL": {"WEIGHTS": ""}})
    state = TrainingState(cfg, checkpointer.model, None, None, None, seed=0)
    state.begin(checkpointer, BestModel(checkpointer, "sem_seg/mIoU"), False, "")
    assert (tmp_path / "model_best.pth").exists() == (file == "model_best")
    assert ("checkpoints of another training" in caplog.text) == (file != "model_best")


class Breaks(HookBase):
    """Ends the run within the evaluation after iteration 2."""

    def after_step(self):
        if self.trainer.iter == 1:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_an_evaluation_that_was_missed_is_made_up_for(tiny_data, make_args, tmp_path, monkeypatch):
    evaluated = []
    monkeypatch.setattr(
        Trainer, "test", classmethod(lambda cls, cfg, model, **_: evaluated.append(1) or {})
    )
    opts = [*TINY_RUN, "SOLVER.CHECKPOINT_PERIOD", 100, "TEST.EVAL_PERIOD", 2]
    opts += ["SOLVER.CHECKPOINT_MINUTES", 7]
    trainer = Trainer(*setup(make_args(*opts, config=SEMANTIC_CONFIG)))
    (checkpoints,) = (hook for hook in trainer._hooks if isinstance(hook, Checkpoints))
    assert checkpoints.minutes == 7
    trainer._hooks.insert(-4, Breaks())  # before the evaluation
    trainer._hooks[-5].trainer = trainer
    trainer.resume_or_load(False)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert (tmp_path / "run/model_0000001.pth").is_file() and not evaluated
    main(make_args(*opts, config=SEMANTIC_CONFIG, flags=("--resume",)))
    assert len(evaluated) == 2  # after iterations 2 and 4


@pytest.fixture
def without_nohup():
    """Programs that are started end by SIGHUP, even if the tests run under nohup."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


def command(make_args, *opts: object, flags: tuple[str, ...] = ()) -> list[str]:
    args = make_args(*opts, config=SEMANTIC_CONFIG)
    program = [sys.executable, str(ROOT / "train_net.py"), "--config-file", args.config_file]
    return [*program, *flags, *args.opts]


@pytest.mark.slow
@pytest.mark.usefixtures("without_nohup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_and_ends_with_its_status(tiny_data, make_args, tmp_path, number):
    """Sent to all processes of the run, the loader's among them, as a terminal does, which is gone
    after SIGHUP. Meanwhile a second run into the same folder stops. kill_and_resume.py sends
    SIGTERM."""
    opts = [*TINY_RUN, "SOLVER.MAX_ITER", 100000, "SOLVER.CHECKPOINT_PERIOD", 100000]
    words = command(make_args, *opts, "DATALOADER.NUM_WORKERS", 1)
    terminal, end = os.openpty() if number == signal.SIGHUP else (-1, -1)
    with open(end if number == signal.SIGHUP else tmp_path / "printed.txt", "w") as file:
        process = Forked(words, stdout=file, start_new_session=True)
    log = tmp_path / "run/metrics.json"
    while not (log.is_file() and log.stat().st_size) and process.poll() is None:
        time.sleep(0.1)
    with pytest.raises(ValueError, match=f"is that of another training: process {process.pid} on"):
        setup(make_args(*TINY_RUN, "SEED", 99, config=SEMANTIC_CONFIG))
    assert "SEED: 99" not in (tmp_path / "run/config.yaml").read_text()
    if number == signal.SIGHUP:
        os.close(terminal)
    os.killpg(process.pid, number)
    assert process.wait(timeout=60) == 128 + number
    (checkpoint,) = (tmp_path / "run").glob("model_*.pth")
    assert torch.load(checkpoint, weights_only=True)["iteration"] + 1 >= 20
    log = (tmp_path / "run/log.txt").read_text()
    assert f"Stopped by signal {number}" in log and "Traceback" not in log
    # The folder is free again.
    setup(make_args(*TINY_RUN, config=SEMANTIC_CONFIG))
    run_claim.release(tmp_path / "run")


@pytest.mark.usefixtures("without_nohup")
def test_a_lost_terminal_but_for_nohup():
    for ignored in (False, True):
        stopping, before = Stopping(), signal.getsignal(signal.SIGHUP)
        if ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stopping.listening():
            signal.raise_signal(signal.SIGHUP)
        assert stopping.agreed() == (0 if ignored else signal.SIGHUP)
        signal.signal(signal.SIGHUP, before)


def test_a_signal_during_an_evaluation_ends_it():
    """The checkpoint was saved before it."""
    stopping, before = Stopping(), signal.getsignal(signal.SIGINT)
    with stopping.listening():
        with pytest.raises(SystemExit) as end, stopping.at_once():
            signal.raise_signal(signal.SIGTERM)
        assert end.value.code == 143 and stopping.agreed() == 0
        signal.raise_signal(signal.SIGINT)
        assert stopping.agreed() == signal.SIGINT
        with pytest.raises(SystemExit) as end, stopping.at_once():
            pytest.fail("the evaluation has begun")
        assert end.value.code == 130
        signal.raise_signal(signal.SIGINT)  # the same, sent to the group and passed on
        stopping._time -= 3
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_all_processes_stop_by_the_signal_of_one(monkeypatch):
    class Checkpoints:
        saved = False

        def save(self, wait):
            self.saved = wait

    checkpoints, stopping = Checkpoints(), Stopping()
    hook = StopOnSignal(stopping, checkpoints)
    hook.after_step()
    assert not checkpoints.saved
    monkeypatch.setattr(stopping, "agreed", lambda: signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        hook.after_step()
    assert checkpoints.saved and end.value.code == 143


def holder(folder: Path) -> dict:
    return json.loads((folder / run_claim.FILE).read_text())


@pytest.mark.slow
def test_a_claim_ends_with_its_process(tmp_path):
    """However it ends: what it wrote into the file does not matter then."""
    program = "import sys, os; from ocr_panoptic.engine.run_claim import claim; claim(sys.argv[1])"
    (tmp_path / "claim.py").write_text(f"{program}; os._exit(1)")
    run_forked([sys.executable, tmp_path / "claim.py", tmp_path], tmp_path / "printed.txt")
    assert holder(tmp_path)["host"] == socket.gethostname()
    run_claim.claim(tmp_path)
    run_claim.claim(tmp_path)  # which is this process's own
    assert holder(tmp_path)["pid"] == os.getpid()
    run_claim.release(tmp_path)
    assert not (tmp_path / run_claim.FILE).exists()


def cannot_lock(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize("host", ["elsewhere", socket.gethostname()])
@pytest.mark.parametrize("state", ["lives", "is dead", "ends meanwhile"])
def test_a_claim_is_watched_for_signs_of_life(tmp_path, monkeypatch, host, state):
    """Claims of another machine are watched, and all where files cannot be locked."""
    path, watched = tmp_path / run_claim.FILE, []
    path.write_text(json.dumps({"host": host, "pid": 7, "begun": "today"}))

    def sleep(seconds: float) -> None:
        assert seconds > 4 * run_claim.BEAT
        watched.append(path)
        if state == "lives":
            os.utime(path, (1, 1))
        elif state == "ends meanwhile":
            path.unlink()

    monkeypatch.setattr(run_claim.time, "sleep", sleep)
    monkeypatch.setattr(fcntl, "lockf", cannot_lock)
    if state == "lives":
        with pytest.raises(ValueError, match=f"process 7 on {host}.*remove {path}"):
            run_claim.claim(tmp_path)
        assert holder(tmp_path)["pid"] == 7
    else:
        run_claim.claim(tmp_path)
        assert holder(tmp_path)["pid"] == os.getpid()
        run_claim.release(tmp_path)
        assert not path.exists() and not run_claim._is_touched(path)
    assert watched == [path]


def test_a_former_claim_of_this_process_is_not_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(run_claim.time, "sleep", lambda _: pytest.fail("watched"))
    monkeypatch.setattr(fcntl, "lockf", cannot_lock)
    content = {"host": socket.gethostname(), "pid": os.getpid()}
    (tmp_path / run_claim.FILE).write_text(json.dumps(content))
    run_claim.claim(tmp_path)
    assert "begun" in holder(tmp_path)
    run_claim.release(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"[1]", b"5", b"\xff\xfe", b"[" * 9000, b'{"pid": [1'],
    ids=["list", "number", "bytes", "deep", "unfinished"],
)
def test_a_claim_that_says_nothing_is_taken(tmp_path, content):
    (tmp_path / run_claim.FILE).write_bytes(content)
    run_claim.claim(tmp_path)
    assert holder(tmp_path)["pid"] == os.getpid()
    run_claim.release(tmp_path)


def test_a_claim_shows_life(tmp_path, monkeypatch):
    monkeypatch.setattr(run_claim, "BEAT", 0.01)
    path = tmp_path / run_claim.FILE
    run_claim.claim(tmp_path)
    os.utime(path, (1, 1))
    deadline = time.monotonic() + 10
    while path.stat().st_mtime == 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.stat().st_mtime > 1
    run_claim.release(tmp_path)


class Diverging(HookBase):
    """Spoils the weights after an iteration."""

    def __init__(self, iteration: int):
        self.iteration = iteration

    def before_step(self):
        if self.trainer.iter == self.iteration:
            head = self.trainer.checkpointer.model.sem_seg_head
            head.refined_predictor.bias.data.fill_(math.nan)


class Broken(HookBase):
    """Makes a weight infinite after an iteration, whose loss is finite."""

    def after_step(self):
        if self.trainer.iter == 2:
            self.trainer.checkpointer.model.sem_seg_head.refined_predictor.bias.data[0] = math.inf


@pytest.mark.slow
def test_weights_that_are_not_finite_are_not_saved(tiny_data, make_args, tmp_path):
    """No such weights are saved, even where no loss has seen them; a file with them could not be
    resumed from."""
    opts = [*TINY_RUN, "SOLVER.CHECKPOINT_PERIOD", 1, "TEST.EVAL_PERIOD", 0]
    trainer = Trainer(*setup(make_args(*opts, config=SEMANTIC_CONFIG)))
    trainer.resume_or_load(False)
    trainer.register_hooks([Broken()])
    trainer._hooks.insert(0, trainer._hooks.pop())  # before the checkpoints
    message = "Iteration 2 has broken the model: 1 values of sem_seg_head.refined_predictor.bias "
    with pytest.raises(FloatingPointError, match=message) as error:
        trainer.train()
    assert "The last whole checkpoint is " in str(error.value)
    assert last_checkpoint(tmp_path / "run").endswith("model_0000001.pth")


@pytest.mark.slow
def test_a_loss_that_is_nan_ends_the_run(tiny_data, make_args, tmp_path, monkeypatch):
    """Before its weights are saved, also where losses are looked at now and then."""
    for period in (1, 100):
        folder = tmp_path / f"run{period}"
        opts = [*TINY_RUN, "OUTPUT_DIR", folder, "TEST.EVAL_PERIOD", 0]
        trainer = Trainer(*setup(make_args(*opts, config=SEMANTIC_CONFIG)))
        trainer._trainer.loss_log = LossLog(period)
        trainer.resume_or_load(False)
        trainer.register_hooks([Diverging(3)])
        monkeypatch.setattr(trainer, "test", lambda *_: pytest.fail("it is evaluated"))
        with pytest.raises(FloatingPointError) as error:
            trainer.train()
        message = str(error.value)
        assert "not finite in iteration 3" in message and "loss_sem_seg nan" in message
        assert message.count("/images/") == 2 and "tiny/raw/train" in message
        assert f"The last whole checkpoint is {folder / 'model_0000002.pth'}" in message
        assert not (folder / "model_final.pth").exists()


def test_what_is_logged_does_not_grow(small_cfg, tmp_path, monkeypatch):
    """Detectron2's lines use the last 1000 of each value; its mean is that of all."""
    monkeypatch.setattr(trainer_module, "HISTORY", 3)
    monkeypatch.setattr(Trainer, "build_train_loader", classmethod(lambda cls, cfg: []))
    trainer = Trainer(small_cfg("ocr", "OUTPUT_DIR", str(tmp_path)))
    with EventStorage() as trainer.storage:
        trainer.before_train()
        for i in range(9):
            trainer.storage.put_scalars(cur_iter=i, total_loss=i)
        history = trainer.storage.history("total_loss")
    assert [value for value, _ in history.values()] == [6, 7, 8] and history.global_avg() == 4


def test_losses_of_all_processes(monkeypatch):
    """Both raise where one has a loss that is not finite; the means are logged at once."""

    def exchange(own: list[list[float]]) -> list[list[list[float]]]:
        return [own, [[loss + shift, seconds + 0.25] for loss, seconds in own]]

    monkeypatch.setattr(loss_log, "_gathered", exchange)
    monkeypatch.setattr(comm, "all_gather", lambda said: [said, "a inf\n    of the images x.jpg"])
    shift, log = 2.0, LossLog(period=3)
    with EventStorage() as storage:
        for iteration in range(7):
            log.add(iteration, ["a"], torch.tensor([float(iteration)]), 0.5, ["y.jpg"])
            histories = storage.histories()
            assert len(histories["total_loss"].values() if iteration > 2 else []) == (
                3 * (iteration // 3)
            )
        assert [value for value, _ in storage.history("total_loss").values()] == [1, 2, 3, 4, 5, 6]
        assert storage.history("data_time").latest() == 0.75
        assert storage.history("rank_data_time").latest() == 0.5
        shift = math.inf
        with pytest.raises(FloatingPointError) as error:
            for iteration in range(7, 10):
                log.add(iteration, ["a"], torch.ones(1), 0.5, ["y.jpg"])
    expected = ["process 0: a 6", "process 1: a inf", "of the images x.jpg"]
    assert [line.strip() for line in str(error.value).splitlines()[1:]] == expected
    assert "iteration 6" in str(error.value)


@pytest.mark.slow
def test_evaluation_of_the_last_checkpoint(tiny_data, make_args, tmp_path):
    """--eval-only --resume."""
    main(make_args(*TINY_RUN, "TEST.EVAL_PERIOD", 0, config=SEMANTIC_CONFIG))
    (tmp_path / "run/model_final.pth").write_bytes(b"")
    flags = ("--eval-only", "--resume", "auto")
    cfg, _ = setup(make_args(*TINY_RUN, config=SEMANTIC_CONFIG, flags=flags))
    assert str(tmp_path / "run/model_0000002.pth") == cfg.MODEL.WEIGHTS
    copy = build_trained_model(cfg)
    cfg.defrost()
    cfg.TEST.OPTIMIZED = False
    model = build_trained_model(cfg)
    saved = torch.load(tmp_path / "run/model_0000002.pth", weights_only=True)["model"]
    weights = model.network.state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in weights.items())
    assert weights_sha256(copy) == weights_sha256(model), "so that a report knows its evaluation"
