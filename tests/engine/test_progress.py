"""How far a training is, on a terminal and in a file."""

import contextlib
import errno
import fcntl
import logging
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Iterator

import pytest
from detectron2.engine import HookBase, TrainerBase
from detectron2.utils.events import CommonMetricPrinter, EventWriter

from ocr_panoptic.console import show_messages, write_log
from ocr_panoptic.engine import progress, run_program
from ocr_panoptic.engine.progress import ProgressBar, ProgressLines, WatchedLoader


class Counting(TrainerBase):
    """Losses that are the iteration."""

    def run_step(self) -> None:
        self.storage.put_scalars(total_loss=self.iter, loss_sem_seg=self.iter / 2)


def run(start: int, end: int, period: int) -> None:
    trainer, lines = Counting(), [CommonMetricPrinter(end)]
    trainer.register_hooks([ProgressLines(lines, period, "run"), ProgressBar()])
    trainer.train(start, end)


@pytest.mark.parametrize(
    "start, end, period, lines",
    [(0, 45, 20, [0, 19, 39, 44]), (3, 22, 20, [3, 19, 21]), (0, 3, 1, [0, 1, 2]), (4, 5, 20, [4])],
)
def test_the_first_line_comes_with_the_first_iteration(tmp_path, start, end, period, lines):
    show_messages()
    write_log(tmp_path)
    run(start, end, period)
    found = re.findall(r"iter: (\d+)  total_loss: ", (tmp_path / "log.txt").read_text())
    assert list(map(int, found)) == lines


class Refusing(HookBase):
    """Ends a training before it begins, as an evaluation that is made up for may."""

    def before_train(self) -> None:
        raise RuntimeError("no such image")


def test_a_training_that_does_not_begin_says_why():
    trainer = Counting()
    trainer.register_hooks([Refusing(), ProgressBar()])
    with pytest.raises(RuntimeError, match="no such image"):
        trainer.train(0, 3)


class Failing(TrainerBase):
    def run_step(self) -> None:
        raise RuntimeError("no memory")


def test_no_line_of_an_iteration_that_failed(capsys):
    show_messages()
    trainer = Failing()
    trainer.register_hooks([ProgressLines([CommonMetricPrinter(3)], 1, "run")])
    with pytest.raises(RuntimeError):
        trainer.train(0, 3)
    assert "iter:" not in capsys.readouterr().out


class FullDisk(EventWriter):
    def write(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    close = write


@pytest.mark.parametrize("period", [1, 20])
def test_a_full_disk_is_one_line(period, capsys):
    """During the training, and after it."""
    trainer = Counting()
    trainer.register_hooks([ProgressLines([CommonMetricPrinter(3), FullDisk()], period, "/run")])
    with pytest.raises(SystemExit):
        run_program(trainer.train, 0, 3)
    error = "ERROR: [Errno 28] No space left on device: '/run'\n"
    assert re.sub(r"\x1b\[\d+m", "", capsys.readouterr().err) == error


def test_a_log_that_cannot_be_written(tmp_path, capsys):
    show_messages()
    (tmp_path / "log.txt").symlink_to("/dev/full")
    write_log(tmp_path)
    for number in (1, 2, 3):
        logging.getLogger("ocr_panoptic").info("message %d", number)
    printed = capsys.readouterr()
    assert printed.out.split("\n") == ["message 1", "message 2", "message 3", ""]
    assert printed.err.count("\n") == 1
    assert f"{tmp_path}/log.txt ends here (No space left on device)" in printed.err


@contextlib.contextmanager
def terminal(shown: list[str]) -> Iterator[None]:
    """A pseudo-terminal of 150 columns as stderr; what it shows is added to the list."""
    parent, child = pty.openpty()
    with open(child, "w") as stream, pytest.MonkeyPatch.context() as patch:
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("4H", 40, 150, 0, 0))
        patch.setattr(sys, "stderr", stream)
        yield
    parts = []
    with contextlib.suppress(OSError):  # at the end, as nobody writes any more
        while part := os.read(parent, 2**16):
            parts.append(part)
    os.close(parent)
    shown.append(b"".join(parts).decode())


def test_a_bar_on_a_terminal(capsys):
    show_messages()
    with terminal(shown := []):
        run(2, 6, 20)
    last = [part for part in shown[0].split("\r") if "100%" in part][-1]
    assert last.startswith("train 100% |████████████████████| 6/6, 00:00 left, ")
    # The medians of 2 ... 5.
    assert last.rstrip().endswith("total 3.5, sem_seg 1.75")
    assert "iter:" not in shown[0] + capsys.readouterr().out  # the lines are in the file alone


def test_an_evaluation_on_a_terminal():
    loader = WatchedLoader([[10], [20]], "evaluate x")
    with terminal(shown := []):
        assert list(loader) == [[10], [20]] and len(loader) == 2 and loader.count([10]) == 1
    assert "evaluate x:   0%|" in shown[0]


def test_no_bar_in_a_file(capsys, monkeypatch):
    """Nor the medians of one, which take long."""
    monkeypatch.setattr(progress, "_losses", lambda: pytest.fail("nobody sees them"))
    show_messages()
    run(0, 2, 20)
    list(WatchedLoader([[10], [20]], "evaluate x"))
    out, err = capsys.readouterr()
    assert err == "" and re.findall(r"iter: (\d+)", out) == ["0", "1"]
