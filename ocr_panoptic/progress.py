"""Run long loops on several cores, with a progress bar in a terminal or lines in a log."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from operator import length_hint
from typing import TypeVar

from tqdm import tqdm

from .errors import UserError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

MAX_WORKERS = 8  # more workers would only wait for the disk
SECONDS = 60.0  # minimum time between two lines in a log


def with_progress(
    items: Iterable[_Item], description: str, total: int | None = None
) -> Iterator[_Item]:
    """
    Yield the items, and show how many are done: as a bar in a terminal, else as lines in the log.

    ``total`` is the number of items; it is needed only if ``items`` has no length.
    """
    if sys.stderr and sys.stderr.isatty():  # sys.stderr is None if the caller has closed it
        yield from tqdm(items, description, total=total, unit="image")
        return
    # In a file, a bar would be one long line, and the next message would follow on the same line.
    total, said = length_hint(items) if total is None else total, time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        if time.monotonic() - said > SECONDS and done < total:
            said = time.monotonic()
            logging.getLogger(__name__).info("%s: %d of %d images", description, done, total)


def imap_with_progress(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    description: str,
    workers: int | None = None,
) -> Iterator[_Result]:
    """
    Compute ``function(item)`` in several processes, and yield the results in order.

    Args:
        function: function that can be pickled.
        workers: number of processes; by default the number of cores, at most 8. With 1, this
            process computes everything.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers is {workers}; expected a number of at least 1.")
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    workers = min(workers or min(cores, MAX_WORKERS), len(items))
    if workers <= 1:
        yield from map(function, with_progress(items, description))
        return
    # multiprocessing.Pool would wait forever for a worker that the system has killed.
    with ProcessPoolExecutor(workers) as pool:
        chunk = max(1, min(32, len(items) // (4 * workers)))
        results = pool.map(function, items, chunksize=chunk)
        yield from with_progress(results, description, len(items))
