"""
An event writer for Weights & Biases and MLflow, the services that the key LOGGERS can name.

A service's package is imported only if LOGGERS names it. The service's environment variables
(WANDB_PROJECT, MLFLOW_TRACKING_URI ...) choose where the run is stored.
"""

import importlib
import json
import logging
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detectron2.config import CfgNode
from detectron2.utils.events import EventWriter, get_event_storage

from ocr_panoptic.config.files import values_by_key
from ocr_panoptic.errors import MissingPackageError, UserError
from ocr_panoptic.formats.files import read_json, write_text

RUNS = "loggers.json"  # file in OUTPUT_DIR: name of each service -> id of the run there
WINDOW = 20  # number of values whose median is logged for a loss, as in metrics.json

# The id of a run, a function that logs an iteration's values, and a function that ends the run.
Begun = tuple[str, Callable[..., Any], Callable[[bool], Any]]


def begin_wandb(wandb: Any, run: str | None, folder: Path, keys: dict[str, Any]) -> Begun:
    name, resume = os.environ.get("WANDB_NAME", folder.name), "allow" if run else None
    begun = wandb.init(dir=folder, name=name, config=keys, id=run, resume=resume)
    return begun.id, begun.log, lambda failed: begun.finish(exit_code=int(failed))


def begin_mlflow(mlflow: Any, run: str | None, folder: Path, keys: dict[str, Any]) -> Begun:
    def log(values: dict[str, float], step: int) -> None:
        # MLflow refuses other characters, which names of classes may contain.
        named = {re.sub(r"[^\w\-. /]", "_", key): value for key, value in values.items()}
        mlflow.log_metrics(named, step=step)

    # Nested, because a notebook may already have a run of its own.
    begun = mlflow.start_run(run_id=run, run_name=None if run else folder.name, nested=True)
    if not run:  # MLflow refuses changed parameters, which a resumed run may have
        mlflow.log_params({key: str(value)[:500] for key, value in keys.items()})
    return begun.info.run_id, log, lambda failed: mlflow.end_run("FAILED" if failed else "FINISHED")


# Each function begins a run with the config ``keys``, or continues the run with the id ``run``.
SERVICES = {"wandb": begin_wandb, "mlflow": begin_mlflow}


class RunLogger(EventWriter):
    """
    An event writer that sends the scalars of metrics.json to a service such as MLflow.

    If the service fails during training, only a warning is logged.
    """

    def __init__(self, name: str, cfg: CfgNode):
        try:
            self._service = importlib.import_module(name)
        except ModuleNotFoundError as error:
            text = f"LOGGERS needs {error.name}, which is not installed. Run: pip install {name}"
            raise MissingPackageError(text) from error
        self._name, self._cfg, self._last = name, cfg, -1

    def open(self, *, resumed: bool) -> None:
        """Begin a run at the service; if ``resumed``, continue the run recorded in OUTPUT_DIR."""
        path = Path(self._cfg.OUTPUT_DIR).absolute() / RUNS
        runs = read_json(path) if path.exists() else {}
        run, keys = runs.get(self._name) if resumed else None, values_by_key(self._cfg)
        try:
            begun = SERVICES[self._name](self._service, run, path.parent, keys)
        except Exception as error:  # each service has its own exceptions
            raise UserError(
                f"LOGGERS: {self._name} cannot start a run: {error}. Check your login and "
                "the server's address (docs/long_runs.md), or remove it from LOGGERS."
            ) from error
        runs[self._name], self._log, self._end = begun
        write_text(path, json.dumps(runs) + "\n")

    def write(self) -> None:
        found: dict[int, dict[str, float]] = defaultdict(dict)
        latest = get_event_storage().latest_with_smoothing_hint(WINDOW)
        for key, (value, iteration) in latest.items():
            if iteration > self._last:
                found[iteration][key] = value
        self._last = max([self._last, *found])
        for iteration in sorted(found):
            self._attempt(self._log, found[iteration], step=iteration)

    def close(self) -> None:
        # Detectron2 closes its writers when training fails, too.
        self._attempt(self._end, isinstance(sys.exc_info()[1], Exception))

    def _attempt(self, call: Callable[..., Any], *args: Any, **keys: Any) -> None:
        try:
            call(*args, **keys)
        except Exception as error:
            logging.getLogger(__name__).warning(
                "Logging to %s failed (%s). metrics.json has all values.", self._name, error
            )
