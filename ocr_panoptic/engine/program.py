"""How a program ends when its user made a mistake."""

import logging
import traceback
from collections.abc import Callable
from typing import Any

PACKAGE = __package__.partition(".")[0]
# Errors below it may be anything: the model's own checks are no advice to the user there.
TRAINING_LOOP = "detectron2.engine.train_loop"


def run_program(main: Callable[..., Any], *args: Any) -> Any:
    """
    Run ``main(*args)``. An OSError, ValueError or ModuleNotFoundError that this package raised is
    its message to the user, and so is the system's about a file (permissions, a full disk): it is
    logged, and the program ends with status 1. Any other error, and whatever happens in the
    training loop, keeps its traceback.
    """
    try:
        return main(*args)
    except (OSError, ValueError, ModuleNotFoundError) as e:
        if not _is_message(e):
            raise
        logging.getLogger(PACKAGE).error("%s", e)
        raise SystemExit(1) from e


def reason(error: Exception) -> str:
    """Why a program stopped: the message to the user, or the traceback where it is none."""
    return str(error) if _is_message(error) else "".join(traceback.format_exception(error))


def _is_message(error: Exception) -> bool:
    if not isinstance(error, OSError | ValueError | ModuleNotFoundError):
        return False
    modules = [
        frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    is_ours = modules[-1].partition(".")[0] == PACKAGE
    names_a_file = isinstance(error, OSError) and error.filename is not None
    return TRAINING_LOOP not in modules and (is_ours or names_a_file)
