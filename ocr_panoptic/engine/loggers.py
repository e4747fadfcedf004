"""
LOGGERS: Detectron2's event writers for Weights & Biases and MLflow.

A service's package is imported only if LOGGERS names it. The service's own variables
(WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME ...) choose the place of
the run.
"""

import importlib
import json
import logging
import os
import re
import sys
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from detectron2.config import CfgNode
from detectron2.utils.events import EventWriter, get_event_storage

from ocr_panoptic.errors import MissingPackageError, UserError
from ocr_panoptic.formats.files import write_text

RUNS = "loggers.json"  # in OUTPUT_DIR: name of a logger -> id of the run there
WINDOW = 20  # number of values whose median is logged for a loss, as in metrics.json

logger = logging.getLogger(__name__)


class RunLogger(EventWriter):
    """
    Sends the scalars of metrics.json to a service.

    A resumed training goes on with the same run there. If the service fails during the training,
    this only warns, because metrics.json has the values.

    Args:
        module: package of the service.
        cfg: config of the training.
    """

    def __init__(self, module: ModuleType, cfg: CfgNode):
        self._module, self._cfg = module, cfg
        self._name, self._last = module.__name__, -1

    def open(self, *, resumed: bool) -> None:
        """Begin a run of the service, or go on with the run that OUTPUT_DIR names."""
        path = Path(self._cfg.OUTPUT_DIR) / RUNS
        runs = json.loads(path.read_text()) if path.exists() else {}
        try:
            runs[self._name] = self._begin(runs.get(self._name) if resumed else None)
        except Exception as error:  # each service has its own exceptions
            raise UserError(
                f"LOGGERS: {self._name} cannot begin a run: {error}. Log in, set it to work "
                f"offline, or leave it out of LOGGERS {list(self._cfg.LOGGERS)}."
            ) from error
        write_text(path, json.dumps(runs) + "\n")

    def write(self) -> None:
        found: dict[int, dict[str, float]] = defaultdict(dict)
        for key, (value, iteration) in (
            get_event_storage().latest_with_smoothing_hint(WINDOW).items()
        ):
            if iteration > self._last:
                found[iteration][key] = value
        self._last = max([self._last, *found])
        for iteration in sorted(found):
            try:
                self._log(found[iteration], iteration)
            except Exception as error:
                logger.warning(
                    "%s has no values of iteration %d, which metrics.json has: %s",
                    self._name,
                    iteration,
                    error,
                )

    def close(self) -> None:
        # Detectron2 closes its writers when a training fails, too.
        failed = isinstance(sys.exc_info()[1], Exception)
        try:
            self._end(failed)
        except Exception as error:
            logger.warning("%s could not end its run: %s", self._name, error)

    @abstractmethod
    def _begin(self, run: str | None) -> str:
        """Begin a run, or go on with the run of this id; return its id."""

    @abstractmethod
    def _log(self, values: Mapping[str, float], iteration: int) -> None: ...

    @abstractmethod
    def _end(self, failed: bool) -> None: ...


class WandbLogger(RunLogger):
    """Logs to Weights & Biases."""

    def _begin(self, run: str | None) -> str:
        folder = Path(self._cfg.OUTPUT_DIR).absolute()
        self._run = self._module.init(
            dir=folder,
            name=os.environ.get("WANDB_NAME", folder.name),
            config=dict(_flat(self._cfg)),
            id=run,
            resume="allow" if run else None,
        )
        return self._run.id

    def _log(self, values: Mapping[str, float], iteration: int) -> None:
        self._run.log(values, step=iteration)

    def _end(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class MlflowLogger(RunLogger):
    """Logs to MLflow."""

    def _begin(self, run: str | None) -> str:
        name = Path(self._cfg.OUTPUT_DIR).absolute().name
        # Nested: a notebook may have a run of its own.
        begun = self._module.start_run(run_id=run, run_name=None if run else name, nested=True)
        if not run:  # a parameter cannot be changed, and differs after a resume
            self._module.log_params({key: str(value)[:500] for key, value in _flat(self._cfg)})
        return begun.info.run_id

    def _log(self, values: Mapping[str, float], iteration: int) -> None:
        # MLflow refuses other characters, which class names may have.
        named = {re.sub(r"[^\w\-. /]", "_", key): value for key, value in values.items()}
        self._module.log_metrics(named, step=iteration)

    def _end(self, failed: bool) -> None:
        self._module.end_run("FAILED" if failed else "FINISHED")


LOGGERS = {"wandb": WandbLogger, "mlflow": MlflowLogger}


def build_loggers(cfg: CfgNode) -> list[RunLogger]:
    """Return the loggers of LOGGERS, for the main process."""
    found = []
    for name in cfg.LOGGERS:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                f"LOGGERS is {list(cfg.LOGGERS)}, and {error.name} is not installed: pip install "
                f"{name}"
            ) from error
        found.append(LOGGERS[name](module, cfg))
    return found


def _flat(node: CfgNode, path: str = "") -> list[tuple[str, Any]]:
    """Return pairs of full key and value of a config."""
    pairs: list[tuple[str, Any]] = []
    for key, value in node.items():
        inner = isinstance(value, CfgNode)
        pairs += _flat(value, f"{path}{key}.") if inner else [(path + key, value)]
    return pairs
