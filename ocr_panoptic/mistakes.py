"""Which errors are the user's mistake, told in a line, and which are defects of the program."""

import dis
import errno
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

PACKAGE = __package__
FULL = (errno.ENOSPC, errno.EDQUOT)  # of disks
TRAINING_LOOP = "detectron2.engine.train_loop"
# In the training loop their checks of arguments are no advice to the user: those are ours.
MODEL = (f"{PACKAGE}.layers", f"{PACKAGE}.modeling")


def is_mistake(error: Exception) -> bool:
    """
    Whether the message of an error is for the user: it is an OSError of the system about a file or
    a full disk, or an OSError, ValueError, ModuleNotFoundError or FloatingPointError that a
    ``raise`` of this package made. One that a call or an expression of this package did not expect
    is a defect.
    """
    if isinstance(error, OSError) and (error.filename is not None or error.errno in FULL):
        return True
    if not isinstance(error, OSError | ValueError | ModuleNotFoundError | FloatingPointError):
        return False
    places = []
    while (place := places[-1].tb_next if places else error.__traceback__) is not None:
        places.append(place)
    modules = [place.tb_frame.f_globals.get("__name__", "") for place in places]
    if not places or modules[-1].partition(".")[0] != PACKAGE or not _is_raise(places[-1]):
        return False
    if isinstance(error, FloatingPointError):
        return True
    return not (TRAINING_LOOP in modules and modules[-1].startswith(MODEL))


def _is_raise(place: TracebackType) -> bool:
    return dis.opname[place.tb_frame.f_code.co_code[place.tb_lasti]] == "RAISE_VARARGS"


class Mistake(NamedTuple):
    """A mistake that a process which loads data has found, in place of its result."""

    message: str


class Telling:
    """
    A function whose mistakes are results, to be looked for by :func:`checked` in another process:
    a DataLoader would make a traceback of them.
    """

    def __init__(self, function: Callable[[Any], Any]):
        self.function = function

    def __call__(self, argument: Any) -> Any:
        try:
            return self.function(argument)
        except Exception as e:
            if not is_mistake(e):
                raise
            return Mistake(str(e))


def checked(result: Any) -> Any:
    """
    Raises:
        ValueError: it is a mistake.
    """
    if isinstance(result, Mistake):
        raise ValueError(result.message)
    return result
