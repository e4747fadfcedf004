"""SIGTERM and SIGINT: the iteration that has begun is finished, and saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from detectron2.utils import comm


class Stopped(SystemExit):
    """The end of all processes together, with what they have done saved."""


class Stopping:
    """Remembers the signal that asked this process to stop."""

    def __init__(self):
        self._signal = 0
        self._at_once = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note a signal within the block instead of ending the process."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread can set handlers
            return
        former = {n: signal.signal(n, self._note) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal end the process within the block, where nothing has to be saved."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def agreed(self) -> int:
        """Return the signal that any process has got, or 0: the same in all. Each of them calls
        it in the same iterations."""
        if comm.get_world_size() == 1:
            return self._signal
        found = torch.tensor(self._signal)
        dist.all_reduce(found, dist.ReduceOp.MAX, comm._get_global_gloo_group())
        return int(found)

    def _note(self, number: int, frame: object) -> None:
        if self._at_once:
            raise SystemExit(128 + number)
        self._signal = number
