"""Processes that work on a data set."""

import logging
import os
import signal
import sys
from concurrent.futures.process import BrokenProcessPool

import pytest

from ocr_panoptic.progress import imap_with_progress


def end(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_order_of_the_items():
    assert list(imap_with_progress(abs, range(-40, 0), "work", workers=2)) == list(range(40, 0, -1))


@pytest.mark.parametrize("seconds, lines", [(0, 2), (60, 0)])
def test_a_log_has_lines_and_no_bar(monkeypatch, caplog, capsys, seconds, lines):
    monkeypatch.setattr("ocr_panoptic.progress.SECONDS", seconds)
    with caplog.at_level(logging.INFO, "ocr_panoptic"):
        assert list(imap_with_progress(abs, [-1, -2, -3], "work", workers=1)) == [1, 2, 3]
    said = [f"work: {done} of 3 images" for done in (1, 2)]
    assert (caplog.messages, capsys.readouterr().err) == (said[:lines], "")
    monkeypatch.setattr(sys, "stderr", None)  # as after 2>&- in a shell
    assert list(imap_with_progress(abs, [-1], "work", workers=1)) == [1]


def test_a_worker_that_the_system_ends_is_not_waited_for():
    with pytest.raises(BrokenProcessPool):
        list(imap_with_progress(end, range(2), "work", workers=2))


def test_no_worker():
    with pytest.raises(ValueError, match="--workers is 0; expected a number of at least 1"):
        list(imap_with_progress(abs, [1], "work", workers=0))
