"""The frame of every program: messages and exit status."""

import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from .errors import NO_MEMORY, PACKAGE, USER_ERRORS, FailedWriteError, lacks_memory

INSTALL = {  # packages that pip cannot install as a dependency on every machine
    "torch": "pip install torch torchvision (https://pytorch.org has the one for your GPU)",
    "detectron2": "make install PYTHON=python in the repository of ocr_panoptic, or pip install "
    "--no-build-isolation git+https://github.com/facebookresearch/detectron2.git (after torch)",
}
# Error numbers that come from the state of a machine, not from a bug.
STATES = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ESTALE, errno.ENAMETOOLONG, errno.ELOOP),
}
MEMORY = (
    "There is too little memory{on} ({what}). Give the program more (`ulimit -v` and `docker run "
    "--memory` limit it). Training needs less with a lower SOLVER.IMS_PER_BATCH, "
    "INPUT.MIN_SIZE_TRAIN or DATALOADER.NUM_WORKERS, a prediction with TEST.SLIDING_WINDOW.SIZE; "
    "docs/memory.md lists more."
)


def run_program(main: Callable[..., Any], *args: Any) -> Any:
    """
    Run ``main(*args)`` as the program of this process.

    An error that :func:`explained` accepts ends it with status 1 and one line, Ctrl-C with 130. Any
    other exception is a bug and shows its traceback. The package's messages go to stderr, unless
    a run logs them (:func:`log_run`).
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly when `head` has read enough
    logging.basicConfig(format="%(levelname)s: %(message)s")
    logging.getLogger(PACKAGE).setLevel(logging.INFO)
    threading.excepthook = _thread_ended
    try:
        return main(*args)
    except KeyboardInterrupt as e:
        raise SystemExit(128 + signal.SIGINT) from e
    except Exception as e:
        text = explained(e)
        if not text:
            raise
        logging.getLogger(PACKAGE).debug("The end:", exc_info=True)  # for a run's log.txt
        print(f"ERROR: {text}", file=sys.stderr)
        raise SystemExit(1) from e


def _thread_ended(end: threading.ExceptHookArgs) -> None:
    """Print a thread's traceback only for a bug; other errors also reach the main thread."""
    if end.exc_value is None or not explained(end.exc_value):
        threading.__excepthook__(end)


def explained(error: BaseException) -> str:
    """
    Return the message for an error that is not a bug, or "" for a bug.

    Not bugs are user errors, lack of memory, system errors (full disk) and missing packages.
    """
    if isinstance(error, USER_ERRORS):
        return str(error)
    if lacks_memory(error):
        lines = [line for line in str(error).splitlines() if line.strip()]
        what = next((line for line in lines if NO_MEMORY.search(line)), "MemoryError")
        return MEMORY.format(what=what.strip()[:200], on=" on the GPU" * ("CUDA" in what))
    if isinstance(error, FileNotFoundError) and os.stat(os.curdir).st_nlink == 0:
        return "The current folder was removed; change to another."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)!r}: {error.strerror or error}"
    if isinstance(error, OSError) and error.errno in STATES:
        before = error.__context__  # after a full disk, the writers fail too
        return str(before if isinstance(before, FailedWriteError) else error)
    if "operator torchvision::" in str(error):  # torchvision is imported even without its library
        return (
            f"torchvision's library cannot be loaded ({error}). It belongs to another torch "
            f"({INSTALL['torch']}), or there is too little memory (`ulimit -v`)."
        )
    if isinstance(error, ModuleNotFoundError) and error.name in INSTALL:
        return f"{error.name} is not installed here: {INSTALL[error.name]}"
    return ""


def log_run(folder: str, rank: int) -> None:
    """
    Log this package and Detectron2 to ``log.txt`` in a folder.

    In the main process, messages of INFO and above also go to the terminal. Handlers of an earlier
    run of this process are removed.

    Args:
        rank: number of this process; if above 0, the file is named after it: ``log.txt.rank1``.
    """
    from detectron2.utils.logger import setup_logger

    setup_logger.cache_clear()
    for name in (PACKAGE, "detectron2", "fvcore"):
        logging.getLogger(name).handlers.clear()
        logger = setup_logger(folder, rank, name=name, configure_stdout=name != "fvcore")
        for handler in logger.handlers:
            handler.handleError = partial(_not_logged, handler)
            if getattr(handler, "stream", None) is sys.stdout:
                handler.setLevel(logging.INFO)
                handler.addFilter(_is_no_end)


def _not_logged(handler: logging.Handler, record: logging.LogRecord) -> None:
    """
    Drop a record if the disk is full or the reader is gone.

    A traceback for each record would hide how the run ends.
    """
    if not isinstance(sys.exc_info()[1], OSError):
        logging.StreamHandler.handleError(handler, record)


def _is_no_end(record: logging.LogRecord) -> bool:
    """
    Return whether to show a record in the terminal.

    Detectron2's traceback at the end of training is hidden, because :func:`run_program` reports
    the error.
    """
    return not (record.exc_info and record.name == "detectron2.engine.train_loop")
