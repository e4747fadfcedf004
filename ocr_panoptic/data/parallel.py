"""A function over many items, with the machine's cores and a progress bar."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import parent_process
from multiprocessing.sharedctypes import RawValue
from typing import Any, TypeVar

from tqdm import tqdm

from ocr_panoptic.errors import UserError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

MAX_WORKERS = 8  # more only wait for the disk


def usable_cores() -> int:
    """The cores that this process may use."""
    known = hasattr(os, "sched_getaffinity")  # not on macOS
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def default_workers() -> int:
    """Processes by default: :func:`usable_cores`, at most 8."""
    return min(usable_cores(), MAX_WORKERS)


def imap_with_progress(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    description: str,
    workers: int | None = None,
) -> Iterator[_Result]:
    """``map(function, items)`` in several processes.

    They end with this process, however it ends, and leave Ctrl-C to it.

    Args:
        function: a function that can be pickled.
        description: the text before the bar.
        workers: processes; by default :func:`default_workers`. With 1 all runs in this process.

    Raises:
        ValueError: fewer than 1 process.
        ChildProcessError: the system ended one of them.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers is {workers}, it must be at least 1.")
    if not items:
        return
    workers = min(workers or default_workers(), len(items))
    if workers <= 1:
        yield from map(function, tqdm(items, description, unit="image"))
        return
    chunk = max(1, min(32, len(items) // (4 * workers)))
    stopped = RawValue("b", False)
    with ProcessPoolExecutor(workers, initializer=_set_up_worker, initargs=(stopped,)) as pool:
        try:
            with _without_ctrl_c():  # which a worker would answer before it knows better
                results = pool.map(partial(_unless_stopped, function), items, chunksize=chunk)
            yield from tqdm(results, description, total=len(items), unit="image")
        except BrokenProcessPool as error:
            raise ChildProcessError(
                f"{description}: the system ended one of {workers} processes, perhaps for want of "
                f"memory. Try again with --workers {workers // 2}."
            ) from error
        finally:
            stopped.value = True


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """A Ctrl-C waits until the end of the block, in processes forked in it for ever."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _set_up_worker(stopped: Any) -> None:
    global _stopped
    _stopped = stopped
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot end its workers, and they would wait for work for ever."""
    parent_process().join()
    os._exit(1)


def _unless_stopped(function: Callable[[_Item], _Result], item: _Item) -> _Result | None:
    """Nobody waits any more for the rest of the items that a worker has been given."""
    return None if _stopped.value else function(item)
