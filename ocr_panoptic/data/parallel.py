"""A function over many items, with the machine's cores and a progress bar."""

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from tqdm import tqdm
from tqdm.contrib.concurrent import process_map

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_WORKERS = 8  # more only wait for the disk


def default_workers() -> int:
    """Processes by default: the cores that this process may use, at most 8."""
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS)


def map_with_progress(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    description: str,
    workers: int | None = None,
) -> list[Result]:
    """``[function(item) for item in items]`` in several processes.

    Args:
        function: a function that can be pickled.
        description: the text before the bar.
        workers: processes; by default :func:`default_workers`. With 1 all runs in this process.

    Raises:
        ValueError: fewer than 1 process.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"--workers is {workers}, it must be at least 1.")
    workers = min(workers or default_workers(), len(items))
    if workers <= 1:
        return [function(item) for item in tqdm(items, description, unit="image")]
    chunk = max(1, min(32, len(items) // (4 * workers)))
    return process_map(
        function, items, max_workers=workers, chunksize=chunk, desc=description, unit="image"
    )
