"""A function over a stream of items, a few of them ahead of what is done with the results."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int = 2
) -> Iterator[Result]:
    """
    ``map(function, items)`` in threads, which do while others hold the GIL what does without it:
    decoding and encoding of images, and the network. Twice as many items as threads are under way
    at most, so memory does not grow.
    """
    pool = ThreadPoolExecutor(threads)
    pending: deque = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
