"""The end of a program: what it was asked for, a user error, or a defect of its own."""

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from .console import show_messages
from .errors import FULL, PACKAGE, is_user_error

DEFECT = (
    "This program did not foresee that: it is a defect of {} unless the machine failed (its "
    "memory, GPU or disk). Please report it with the lines above."
)

logger = logging.getLogger(PACKAGE)

_said_by_main: list[Exception] = []


def run_program(main: Callable[..., Any], *args: Any) -> Any:
    """
    Run ``main(*args)`` and show what the package logs. An error ends the program with status 1:

    - A user error (:func:`.is_user_error`) is its message.
    - Anything else has its traceback, and is called a defect.

    Ctrl-C ends with status 130. Warnings that are out of sight are repeated before.
    """
    console = show_messages(_rank())
    threading.excepthook = _tell_of_thread
    try:
        result = main(*args)
    except KeyboardInterrupt as e:
        console.repeat_warnings()
        logger.error("Interrupted")
        raise SystemExit(130) from e
    except Exception as e:
        console.repeat_warnings()
        logger.log(logging.DEBUG if e in _said_by_main else logging.ERROR, "%s", reason(e))
        raise SystemExit(1) from e
    except SystemExit:
        console.repeat_warnings()
        raise
    console.repeat_warnings()
    return result


def _tell_of_thread(end: threading.ExceptHookArgs) -> None:
    """Say nothing of a full disk: what writes events for TensorBoard raises that again, in the
    thread that waits."""
    if getattr(end.exc_value, "errno", None) not in FULL:
        threading.__excepthook__(end)


def leave_to_main(error: Exception) -> None:
    """Do not show the error in all but the main process, which has, or says, the same reason."""
    if _rank() > 0:
        _said_by_main.append(error)


def _rank() -> int:
    """Return the number of this process in its run; 0 where PyTorch has not been imported."""
    if not sys.modules.get("torch"):
        return 0
    from detectron2.utils import comm

    return comm.get_rank()


def reason(error: Exception) -> str:
    """Why a program stopped: the message to the user, or the traceback of a defect."""
    if is_user_error(error):
        return str(error)
    return "".join(traceback.format_exception(error)) + DEFECT.format(PACKAGE)
