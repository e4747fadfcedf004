"""SIGTERM, SIGINT and SIGHUP: what is begun is finished, and saved."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from .agreement import Poll

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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
        """Note a signal instead of ending the process; a second one, 2 seconds or more after it,
        ends it."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python hears signals in the main thread alone
            return
        with _heard_by(self._note):
            yield

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal end the process: there is nothing that has to be saved."""
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
            # Not by logging, which the signal may have interrupted; the terminal may be gone.
            with suppress(OSError):
                os.write(2, f"{name}: saving a checkpoint after this iteration\n".encode())


@contextmanager
def passing_on_signals() -> Iterator[None]:
    """Pass the signals on to the processes that this one has started; it waits for their end."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in multiprocessing.active_children():
            os.kill(child.pid, number)

    with _heard_by(pass_on):
        yield


@contextmanager
def _heard_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a handler hear the signals; nohup's process goes on without its terminal."""
    numbers = [n for n in NUMBERS if (n, signal.getsignal(n)) != (signal.SIGHUP, signal.SIG_IGN)]
    former = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in former.items():
            signal.signal(number, previous)
