"""A word on what a program waits for before it can say anything else."""

import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 2.0  # seconds


@contextmanager
def importing(what: str) -> Iterator[None]:
    """
    Say what takes so long, in a line on the terminal, where imports take two seconds. Other
    packages' warnings of what they will change one day are not shown, and Ctrl-C ends quietly.
    """
    timer = threading.Timer(PATIENCE, _say, [f"Importing {what} ..."])
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty() and _is_main_process():
        timer.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        timer.cancel()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _is_main_process() -> bool:
    """Check that neither another process nor torchrun, as any but the first, has started this one.
    One that multiprocessing spawns imports the program before it knows its parent, but after its
    name."""
    is_started = multiprocessing.current_process().name != "MainProcess"
    return not is_started and os.environ.get("RANK", "0") == "0"
