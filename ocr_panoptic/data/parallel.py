"""A function computed for many items on several cores, with progress."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from ocr_panoptic.errors import UserError
from ocr_panoptic.progress import with_progress

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

MAX_WORKERS = 8  # more only wait for the disk


def imap_with_progress(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    description: str,
    workers: int | None = None,
) -> Iterator[_Result]:
    """
    Yield ``function(item)`` for the items in their order, computed by several processes.

    Args:
        function: a function that can be pickled.
        description: text before the bar.
        workers: number of processes, by default the machine's cores, at most 8. With 1, this
            process computes everything.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers is {workers}, it must be at least 1.")
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    workers = min(workers or min(cores, MAX_WORKERS), len(items))
    if workers <= 1:
        yield from map(function, with_progress(items, description))
        return
    # multiprocessing.Pool would wait for ever for a worker that the system has killed.
    with ProcessPoolExecutor(workers) as pool:
        chunk = max(1, min(32, len(items) // (4 * workers)))
        results = pool.map(function, items, chunksize=chunk)
        yield from with_progress(results, description, len(items))
