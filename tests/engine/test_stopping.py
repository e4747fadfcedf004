"""Signals end a run with a checkpoint, in all of its processes."""

import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from ocr_panoptic.engine import run_claim, setup
from ocr_panoptic.engine.hooks import StopOnSignal
from ocr_panoptic.engine.stopping import Stopping
from support.forked import Forked
from support.tiny_runs import ROOT


@pytest.fixture
def without_nohup():
    """Programs that are started end by SIGHUP, even if the tests run under nohup."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.mark.slow
@pytest.mark.usefixtures("without_nohup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_and_ends_with_its_status(tiny_data, short_args, tmp_path, number):
    """Sent to all processes of the run, the loader's among them, as a terminal does, which is gone
    after SIGHUP. Meanwhile a second run into the same folder stops. kill_and_resume.py sends
    SIGTERM."""
    long = ("SOLVER.MAX_ITER", 100000, "SOLVER.CHECKPOINT_PERIOD", 100000)
    args = short_args(*long, "DATALOADER.NUM_WORKERS", 1)
    words = [sys.executable, ROOT / "train_net.py", "--config-file", args.config_file, *args.opts]
    terminal, end = os.openpty() if number == signal.SIGHUP else (-1, -1)
    with open(end if number == signal.SIGHUP else tmp_path / "printed.txt", "w") as file:
        process = Forked(words, stdout=file, start_new_session=True)
    log = tmp_path / "run/metrics.json"
    while not (log.is_file() and log.stat().st_size) and process.poll() is None:
        time.sleep(0.1)
    with pytest.raises(ValueError, match=f"is that of another training: process {process.pid} on"):
        setup(short_args("SEED", 99))
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
    setup(short_args())
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
    saved, stopping = [], Stopping()
    checkpoints = SimpleNamespace(save=lambda: saved.append(True))
    hook = StopOnSignal(stopping, checkpoints)
    hook.after_step()
    assert saved == []
    monkeypatch.setattr(stopping, "agreed", lambda: signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        hook.after_step()
    assert saved == [True] and end.value.code == 143
