"""A call that leaves the process of its caller as it was."""

import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from detectron2.utils import comm

from ocr_panoptic.console import THEIRS, show_messages
from ocr_panoptic.errors import PACKAGE
from ocr_panoptic.seeding import kept_generators

from .run_claim import released_after

OURS = (PACKAGE, *THEIRS)
# That --deterministic and Detectron2's seeding set.
ENVIRONMENT = ("CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED")


@contextmanager
def undisturbed() -> Iterator[None]:
    """
    Show messages as the programs do within the block, and leave random generators, logging,
    PyTorch's switches and threads, signal handlers, and the folders that are claimed as they were
    before it. What would end a program is raised.

    Raises:
        KeyboardInterrupt: the block was ended by SIGINT.
        RuntimeError: by an exit with another status than that of a signal.
    """
    with ExitStack() as stack:
        for kept in (released_after, kept_generators, _switches, _logging):
            stack.enter_context(kept())
        try:
            yield
        except SystemExit as e:
            if e.code == 128 + signal.SIGINT:
                raise KeyboardInterrupt from e
            if isinstance(e.code, int) and e.code > 128:  # the process was asked to end
                raise
            raise RuntimeError(f"It ended with status {e.code}; the messages say why") from e


@contextmanager
def _switches() -> Iterator[None]:
    cudnn, threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        with kept_variables(*ENVIRONMENT):
            yield
    finally:
        torch.backends.cudnn.benchmark = cudnn
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextmanager
def kept_variables(*names: str) -> Iterator[None]:
    """Leave these variables of the environment as they were before the block, and others alone."""
    values = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _logging() -> Iterator[None]:
    """Handlers of the caller get what they would have got without the levels of within."""
    root, torch_logger = logging.getLogger(), logging.getLogger("torch")
    handlers, shown = root.handlers[:], warnings.showwarning
    levels = {name: logging.getLogger(name).level for name in OURS}
    effective = {name: logging.getLogger(name).getEffectiveLevel() for name in OURS}
    of_torch = torch_logger.handlers[:], torch_logger.propagate

    def as_before(record: logging.LogRecord) -> bool:
        return record.levelno >= effective.get(record.name.partition(".")[0], 0)

    for handler in handlers:
        handler.addFilter(as_before)
    console = show_messages(comm.get_rank())
    try:
        yield
    finally:
        console.repeat_warnings()
        for handler in handlers:
            handler.removeFilter(as_before)
        for handler in set(root.handlers) - set(handlers):
            handler.close()
        root.handlers[:] = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        torch_logger.handlers[:], torch_logger.propagate = of_torch
        if warnings.showwarning is not shown:
            logging.captureWarnings(False)
