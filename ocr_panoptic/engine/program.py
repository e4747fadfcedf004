"""How a program ends: with what it was asked for, its user's mistake, or a defect of its own."""

import dis
import logging
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from detectron2.utils import comm

from .console import PACKAGE, TRAINING_LOOP, show_messages

# In the training loop their checks are no advice to the user: what they are given there is ours.
MODEL = (f"{PACKAGE}.layers", f"{PACKAGE}.modeling")

DEFECT = (
    "This program did not foresee that: it is a defect of {} unless the machine failed (its "
    "memory, GPU or disk). Please report it with the lines above."
)

logger = logging.getLogger(PACKAGE)


def run_program(main: Callable[..., Any], *args: Any) -> Any:
    """
    Run ``main(*args)`` and show what the package logs. An error ends the program with status 1:

    - The user's mistake, an OSError, ValueError, ModuleNotFoundError or FloatingPointError that a
      ``raise`` of this package made, is its message; so is the system's about a file (permissions,
      a full disk).
    - Anything else has its traceback, and is called a defect. That includes such errors where a
      statement of this package did not expect them.

    Ctrl-C ends with status 130. Warnings that are out of sight are repeated before.
    """
    console = show_messages(comm.get_rank())
    try:
        result = main(*args)
    except KeyboardInterrupt as e:
        console.repeat_warnings()
        logger.error("Interrupted")
        raise SystemExit(130) from e
    except Exception as e:
        console.repeat_warnings()
        logger.error("%s", reason(e))
        raise SystemExit(1) from e
    except SystemExit:
        console.repeat_warnings()
        raise
    console.repeat_warnings()
    return result


def reason(error: Exception) -> str:
    """Why a program stopped: the message to the user, or the traceback of a defect."""
    if _is_message(error):
        return str(error)
    return "".join(traceback.format_exception(error)) + DEFECT.format(PACKAGE)


def _is_message(error: Exception) -> bool:
    if isinstance(error, OSError) and error.filename is not None:
        return True
    if not isinstance(error, OSError | ValueError | ModuleNotFoundError | FloatingPointError):
        return False
    places = []
    while (place := places[-1].tb_next if places else error.__traceback__) is not None:
        places.append(place)
    modules = [place.tb_frame.f_globals.get("__name__", "") for place in places]
    if not places or modules[-1].partition(".")[0] != PACKAGE or not _is_raise(places[-1]):
        return False
    return not (TRAINING_LOOP in modules and modules[-1].startswith(MODEL))


def _is_raise(place: TracebackType) -> bool:
    """Whether the error is of a ``raise`` there, instead of a call or an expression."""
    return dis.opname[place.tb_frame.f_code.co_code[place.tb_lasti]] == "RAISE_VARARGS"
