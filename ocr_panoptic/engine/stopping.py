"""SIGTERM and SIGINT: what is begun is finished, and saved."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .agreement import Poll

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class Stopped(SystemExit):
    """The end of all processes together, with what they have done saved."""


class Stopping:
    """Takes the signals that ask this process to stop, and says so when it is asked."""

    def __init__(self):
        self._signal = 0
        self._time = 0.0
        self._at_once = False
        self._poll = Poll()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within, a signal is noted instead of ending the process; a second one, 2 seconds or more
        after it, ends it."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python hears signals in the main thread alone
            return
        former = {number: signal.signal(number, self._note) for number in NUMBERS}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within, a signal ends the process: there is nothing that has to be saved."""
        if self._signal:
            raise SystemExit(128 + self._signal)
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def agreed(self) -> int:
        """The signal that any process has got, or 0: the same in all, see :class:`.Poll`. Each of
        them has to call it."""
        return self._poll.largest(self._signal)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._at_once or (self._signal and time.monotonic() - self._time > 2):
            raise SystemExit(128 + number)
        if not self._signal:
            self._signal, self._time = number, time.monotonic()
            name = signal.Signals(number).name
            # Not by logging, which the signal may have interrupted.
            os.write(2, f"{name}: saving a checkpoint after this iteration\n".encode())


@contextmanager
def passing_on_signals() -> Iterator[None]:
    """Within, the signals go to the processes that this one has started; it waits for their end."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in multiprocessing.active_children():
            os.kill(child.pid, number)

    former = {number: signal.signal(number, pass_on) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
