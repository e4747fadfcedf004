"""Signals end a run with a checkpoint, in all of its processes."""

import os
import signal
import sys
import threading
import time

import pytest
import torch

from ocr_panoptic.engine import setup
from ocr_panoptic.engine.hooks import Stopping
from ocr_panoptic.engine.setup import claimed
from support.forked import Forked
from support.tiny_runs import ROOT


@pytest.mark.slow
def test_a_signal_saves_and_ends_with_its_status(tiny_data, short_args, tmp_path):
    """Sent to all processes of the run, the loader's among them, as a terminal does. Meanwhile a
    second run into the same folder stops."""
    long = ("SOLVER.MAX_ITER", 100000, "SOLVER.CHECKPOINT_PERIOD", 100000)
    args = short_args(*long, "DATALOADER.NUM_WORKERS", 1)
    words = [sys.executable, ROOT / "train_net.py", "--config-file", args.config_file, *args.opts]
    with open(tmp_path / "printed.txt", "w") as file:
        process = Forked(words, stdout=file, start_new_session=True)
    log = tmp_path / "run/metrics.json"
    while not (log.is_file() and log.stat().st_size) and process.poll() is None:
        time.sleep(0.1)
    with pytest.raises(ValueError, match="is that of another training"):
        claimed(str(tmp_path / "run"))
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 128 + signal.SIGINT
    (checkpoint,) = (tmp_path / "run").glob("model_*.pth")
    assert torch.load(checkpoint, weights_only=True)["iteration"] + 1 >= 20
    log = (tmp_path / "run/log.txt").read_text()
    assert "Stopped by signal 2" in log and "Traceback" not in log
    with claimed(str(tmp_path / "run")):  # it is free again
        setup(short_args())


def test_a_signal_during_an_evaluation_ends_it():
    """The checkpoint was saved before it."""
    stopping, before = Stopping(), signal.getsignal(signal.SIGINT)
    with stopping.listening():
        with pytest.raises(SystemExit) as end, stopping.at_once():
            signal.raise_signal(signal.SIGTERM)
        assert end.value.code == 143 and stopping.agreed() == 0
        for _ in range(2):  # sent to the group, and passed on by torchrun
            signal.raise_signal(signal.SIGINT)
        assert stopping.agreed() == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before


def test_a_training_in_a_thread():
    """Only the main thread can listen."""

    def listen() -> None:
        with Stopping().listening():
            done.append(True)

    done = []
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert done
