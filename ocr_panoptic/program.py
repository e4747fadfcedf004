"""Run programs with clear error messages, an exit status and a log."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import NO_MEMORY, MissingPackageError, UserError, lacks_memory

INSTALL = {  # packages that pip cannot install as a dependency on every machine
    "torch": "pip install torch torchvision (for a GPU, see https://pytorch.org)",
    "detectron2": "make install PYTHON=python in the repository of ocr_panoptic; or install "
    "torch first, and then: pip install --no-build-isolation git+https://github.com/facebookresearch/detectron2.git",
}
ONE_VALUE = "Expected more than 1 value per channel"  # of PyTorch's batch norms
MEMORY = (
    "There is not enough memory{on} ({what}). For training, lower SOLVER.IMS_PER_BATCH, "
    "INPUT.MIN_SIZE_TRAIN or DATALOADER.NUM_WORKERS. For prediction, set "
    "TEST.SLIDING_WINDOW.SIZE. docs/memory.md describes more ways."
)


def run_program(main: Callable[..., Any], *args: Any) -> Any:
    """
    Run ``main(*args)``, and log to stderr.

    If ``main`` raises an expected error (e.g. a full disk), a message is printed without a
    traceback, and the exit status is 1. After Ctrl-C, the exit status is 130.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly when `head` has read enough
    logging.raiseExceptions = False  # a full disk would print a traceback for each message
    logging.basicConfig(format="%(levelname)s: %(message)s")
    logging.getLogger(__package__).setLevel(logging.INFO)
    try:
        return main(*args)
    except KeyboardInterrupt as e:
        raise SystemExit(128 + signal.SIGINT) from e
    except Exception as e:
        text = explained(e)
        if not text:
            raise
        logging.getLogger(__package__).debug("The end:", exc_info=True)  # for a run's log.txt
        print(f"ERROR: {text}", file=sys.stderr)
        raise SystemExit(1) from e


def explained(error: BaseException) -> str:
    """Return a message for the user if the error is expected (e.g. a full disk), else ""."""
    if isinstance(error, UserError | MissingPackageError | FloatingPointError):  # NaN losses
        return str(error)
    if lacks_memory(error):
        lines = [line for line in str(error).splitlines() if line.strip()]
        what = next((line for line in lines if NO_MEMORY.search(line)), "MemoryError")
        return MEMORY.format(what=what.strip()[:200], on=" on the GPU" * ("CUDA" in what))
    if isinstance(error, ValueError) and ONE_VALUE in str(error):
        return (
            f"A batch norm cannot be trained: {error}. Its input is one image of one pixel. Give "
            "each process more images (SOLVER.IMS_PER_BATCH) or larger images (INPUT), or set a "
            "norm that does not need a batch, such as MODEL.OCR.NORM GN."
        )
    if isinstance(error, OSError):
        file, why = error.filename, error.strerror or error
        return f"{os.fsdecode(file)!r}: {why}" if file is not None else str(error)
    if isinstance(error, ModuleNotFoundError) and error.name in INSTALL:
        return f"{error.name} is not installed. Install it: {INSTALL[error.name]}"
    return ""


def log_run(folder: str, rank: int) -> None:
    """
    Start writing the log of this package and Detectron2 to ``log.txt`` in a folder.

    The main process, with rank 0, also shows messages of level INFO and above in the terminal.
    Other processes write ``log.txt.rank1`` and so on. Log handlers of earlier runs are removed.
    """
    from detectron2.utils.logger import setup_logger

    file = Path(folder, f"log.txt.rank{rank}" if rank else "log.txt")
    if file.is_symlink():  # the log must not be appended to another file of the user
        file.unlink()
    setup_logger.cache_clear()
    ended = "detectron2.engine.train_loop"  # hide its traceback: run_program reports the error
    for name in (__package__, "detectron2", "fvcore"):
        logging.getLogger(name).handlers.clear()
        logger = setup_logger(folder, rank, name=name, configure_stdout=name != "fvcore")
        for handler in logger.handlers:
            if getattr(handler, "stream", None) is sys.stdout:
                handler.setLevel(logging.INFO)
                handler.addFilter(lambda record: not (record.exc_info and record.name == ended))
