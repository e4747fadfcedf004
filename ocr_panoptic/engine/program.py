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
    Run ``main(*args)``. A FileNotFoundError or ValueError that this package raised is its message
    to the user: it is logged, and the program ends with status 1. Any other error, and whatever
    happens in the training loop, keeps its traceback.
    """
    try:
        return main(*args)
    except (FileNotFoundError, ValueError) as e:
        modules = [
            frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(e.__traceback__)
        ]
        if TRAINING_LOOP in modules or modules[-1].partition(".")[0] != PACKAGE:
            raise
        logging.getLogger(PACKAGE).error("%s", e)
        raise SystemExit(1) from e
