"""Processes that work on a data set, and how they end."""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from functools import partial
from multiprocessing.util import register_after_fork

import pytest
from tqdm import tqdm

from ocr_panoptic.data.parallel import default_workers, imap_with_progress


def wait(seconds: float, number: int) -> None:
    print("begun", file=sys.stderr)
    time.sleep(seconds)


def end(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Forked:
    """``imap_with_progress`` in a process of its own, the leader of a group that its workers join.

    Attributes:
        said: what all of them have written to stderr so far, a pipe that ends when they have.
    """

    def __init__(self, function):
        self.pipe, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.setsid()
                # Which a shell's background job would ignore.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                tqdm.set_lock(threading.RLock())  # a killed process would keep the one we share
                register_after_fork(self, Forked.linger)
                sys.stderr = os.fdopen(theirs, "w", buffering=1)
                list(imap_with_progress(function, range(1000), "work", workers=2))
            except KeyboardInterrupt:
                code = 130
            finally:
                os._exit(code)
        os.close(theirs)
        self.said = b""

    def linger(self) -> None:
        """What a worker does before it is set up."""
        print("forked", file=sys.stderr)
        time.sleep(0.1)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_) -> None:
        os.close(self.pipe)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def read(self, until: bytes | None = None) -> None:
        """Wait until they have said it, or until all of them have ended."""
        while until is None or until not in self.said:
            assert select.select([self.pipe], [], [], 20)[0], "they go on"
            part = os.read(self.pipe, 4096)
            if not part:
                break
            self.said += part

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent(way):
    with Forked(partial(wait, 600)) as forked:
        forked.read(until=b"begun")
        os.kill(forked.pid, way)
        assert forked.wait() == -way
        forked.read()


@pytest.mark.parametrize("moment", [b"forked", b"begun"])
def test_ctrl_c_is_the_parents_to_answer(moment):
    with Forked(partial(wait, 0.01)) as forked:
        forked.read(until=moment)
        os.killpg(forked.pid, signal.SIGINT)
        forked.read()
        assert forked.wait() == 130
    assert b"Traceback" not in forked.said
    assert forked.said.count(b"begun") < 900  # of 1000: the rest is left


def test_a_worker_that_the_system_ends():
    with pytest.raises(ChildProcessError, match="ended one of 2 processes.*Try again with --work"):
        list(imap_with_progress(end, range(2), "work", workers=2))


def test_order_of_the_items():
    assert list(imap_with_progress(abs, range(-40, 0), "work", workers=2)) == list(range(40, 0, -1))


@pytest.mark.parametrize("cores, workers", [(3, 3), (64, 8), (None, 1)])
def test_cores_of_a_system_without_affinity(monkeypatch, cores, workers):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert default_workers() == workers
