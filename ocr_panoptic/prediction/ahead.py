"""A function over a stream of items, a few of them ahead of what is done with the results."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


THREADS = 2


def under_way(threads: int = THREADS) -> int:
    """The largest number of items whose results :func:`ahead` has not given yet."""
    return 2 * threads


def ahead(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int = THREADS
) -> Iterator[Result]:
    """
    ``map(function, items)`` in threads, which do while others hold the GIL what does without it:
    decoding and encoding of images, and the network. Memory does not grow, see :func:`under_way`.
    """
    pool = ThreadPoolExecutor(threads)
    pending: deque = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= under_way(threads):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
