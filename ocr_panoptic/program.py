"""The frame of every program: its messages, and how it ends."""

import errno
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any

from .errors import PACKAGE, USER_ERRORS

INSTALL = {  # what pip cannot bring for every machine as a dependency
    "torch": "pip install torch torchvision (https://pytorch.org has the one for your GPU)",
    "detectron2": "pip install --no-build-isolation "
    "git+https://github.com/facebookresearch/detectron2.git (after torch)",
}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # a disk's state, and no defect


def run_program(main: Callable[..., Any], *args: Any) -> Any:
    """
    Run ``main(*args)`` as the program of this process. A user error (:data:`.USER_ERRORS`) ends it
    with status 1 and its message, Ctrl-C with 130; any other exception is a traceback.

    The package's messages are shown on stderr, unless a run logs them (:func:`log_run`).
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly where `head` has read enough
    logging.basicConfig(format="%(levelname)s: %(message)s")
    logging.getLogger(PACKAGE).setLevel(logging.INFO)
    try:
        return main(*args)
    except KeyboardInterrupt as e:
        raise SystemExit(128 + signal.SIGINT) from e
    except (*USER_ERRORS, OSError) as e:
        if not isinstance(e, USER_ERRORS) and e.errno not in FULL:
            raise
        logging.getLogger(PACKAGE).debug("The end:", exc_info=True)  # of a run, for its log.txt
        print(f"ERROR: {e}", file=sys.stderr)
        raise SystemExit(1) from e
    except ModuleNotFoundError as e:
        if e.name not in INSTALL:
            raise
        print(f"ERROR: {e.name} is not installed here: {INSTALL[e.name]}", file=sys.stderr)
        raise SystemExit(1) from e


def log_run(folder: str, rank: int) -> None:
    """
    Log this package and Detectron2 to ``log.txt`` in a folder and, in the main process, from INFO
    on to the terminal. Replaces the log of an earlier run of this process.

    Args:
        rank: number of this process; those above 0 have a file of their own, ``log.txt.rank1``.
    """
    from detectron2.utils.logger import setup_logger

    setup_logger.cache_clear()
    for name in (PACKAGE, "detectron2", "fvcore"):
        logging.getLogger(name).handlers.clear()
        logger = setup_logger(folder, rank, name=name, configure_stdout=name != "fvcore")
        for handler in logger.handlers:
            if getattr(handler, "stream", None) is sys.stdout:
                handler.setLevel(logging.INFO)
