"""Python's garbage collection, which a large JSON need not pay for."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """No search for cycles of garbage meanwhile, of which JSON has none: where millions of objects
    come and none goes, it takes most of the time. Also a decorator."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
