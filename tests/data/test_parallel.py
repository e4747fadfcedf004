"""Processes that work on a data set."""

import os
import signal
from concurrent.futures.process import BrokenProcessPool

import pytest

from ocr_panoptic.data.parallel import imap_with_progress


def end(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_order_of_the_items():
    assert list(imap_with_progress(abs, range(-40, 0), "work", workers=2)) == list(range(40, 0, -1))


def test_a_worker_that_the_system_ends_is_not_waited_for():
    with pytest.raises(BrokenProcessPool):
        list(imap_with_progress(end, range(2), "work", workers=2))


def test_no_worker():
    with pytest.raises(ValueError, match="--workers is 0, it must be at least 1"):
        list(imap_with_progress(abs, [1], "work", workers=0))
