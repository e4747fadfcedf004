"""What a training is besides its model: saved, and gone on with."""

import logging
from collections.abc import Mapping
from typing import Any

from detectron2.config import CfgNode
from detectron2.solver import LRScheduler
from detectron2.utils import comm
from torch import nn

from .accumulation import AccumulatingTrainer
from .averaging import Averaging
from .resume import (
    Position,
    continued_optimizer,
    continued_state,
    difference_table,
    parameter_names,
    position_after,
    set_iteration,
)

logger = logging.getLogger(__name__)


class TrainingState:
    """
    All that a resumed run needs besides the weights, for a checkpointer: optimizer, average,
    iteration and seed. The random numbers and the images to come follow from seed and position.

    Args:
        cfg: scaled to the number of processes.
        model: without DistributedDataParallel.
        steps: what trains it.
        averaging: of the model; None without an average.
        seed: of the random numbers and the images.

    Attributes:
        start: where the run begins.
        seed: after a resume that of the saved run.
    """

    def __init__(
        self,
        cfg: CfgNode,
        model: nn.Module,
        steps: AccumulatingTrainer,
        scheduler: LRScheduler,
        averaging: Averaging | None,
        seed: int,
    ):
        self._cfg = cfg
        self._model = model
        self._steps = steps
        self._scheduler = scheduler
        self._averaging = averaging
        self.seed = seed
        self.start = Position(0, 0)

    @property
    def iteration(self) -> int:
        """The last one, which the model is of."""
        return self._steps.iter

    def check(self, file: str) -> None:
        """
        Look at a checkpoint that is to be loaded: what is begun with, and what is set otherwise.

        Raises:
            ValueError: see :func:`.continued_state` and :func:`.position_after`.
        """
        state = continued_state(self._cfg, file, self._model)
        self.start = position_after(self._cfg, state)
        if table := difference_table(self._cfg, state):
            logger.warning("The run goes on with other settings, those on the right:\n%s", table)

    def state_dict(self) -> dict[str, Any]:
        done = self.iteration + 1 - self.start.iteration
        state = {
            "iteration": self.iteration,
            "images": self.start.images + done * self._cfg.SOLVER.IMS_PER_BATCH,
            "seed": self.seed,
            "processes": comm.get_world_size(),
            "config": self._cfg.dump(),
            "parameters": self._parameter_names(),
            "_trainer": self._steps.state_dict(),
        }
        if self._averaging:  # which is the model of the file
            state["trained_weights"] = self._averaging.trained()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """
        Load the state of a file that was checked, see :meth:`check`; the model is the file's.

        Raises:
            ValueError: see :func:`.continued_optimizer`.
        """
        if self._averaging:
            self._averaging.begin()
        if "trained_weights" in state_dict:
            self._model.load_state_dict(state_dict["trained_weights"])
        saved = state_dict["_trainer"]
        optimizer = continued_optimizer(
            saved["optimizer"],
            state_dict.get("parameters"),
            self._parameter_names(),
            self._steps.optimizer,
        )
        iteration = self.start.iteration - 1
        self._steps.load_state_dict({**saved, "optimizer": optimizer, "iteration": iteration})
        set_iteration(self._scheduler, self.start.iteration)
        if "seed" not in state_dict:
            logger.warning("The checkpoint has no seed: the images come in an order of this run's")
        self.seed = state_dict.get("seed", self.seed)

    def _parameter_names(self) -> list[str]:
        return parameter_names(self._model, self._steps.optimizer)
