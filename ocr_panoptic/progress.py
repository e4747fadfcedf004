"""Progress of a long loop: a bar on a terminal, a line each minute in a log."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

_Item = TypeVar("_Item")

SECONDS = 60.0  # between two lines in a log


def with_progress(
    items: Iterable[_Item], description: str, total: int | None = None
) -> Iterator[_Item]:
    """
    Yield the items, and show how many are done.

    Args:
        description: text before the bar.
        total: number of items, if ``items`` has no length.
    """
    if sys.stderr.isatty():
        yield from tqdm(items, description, total=total, unit="image")
        return
    # A log would keep a bar as one long line, to which the next line is glued.
    total, said = len(items) if total is None else total, time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        if time.monotonic() - said > SECONDS and done < total:
            said = time.monotonic()
            logging.getLogger(__name__).info("%s: %d of %d images", description, done, total)
