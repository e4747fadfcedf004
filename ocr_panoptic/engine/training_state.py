"""The state of a training besides its model: saved, and gone on with."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.solver import LRScheduler
from detectron2.utils import comm
from torch import nn

from ocr_panoptic.checkpoint import (
    SafeCheckpointer,
    check_settings,
    fetch_weights,
    newest_whole,
    settings_of,
)
from ocr_panoptic.formats.run_folder import write_config

from .accumulation import AccumulatingTrainer
from .agreement import agree, stop_together
from .averaging import Averaging
from .hooks import BestModel
from .resume import (
    Position,
    Resume,
    continued_state,
    difference_table,
    find_checkpoint,
    position_after,
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

    def begin(
        self, checkpointer: SafeCheckpointer, best: BestModel | None, resume: Resume, written: str
    ) -> None:
        """
        Load the last checkpoint of OUTPUT_DIR, or the weights that the config names, and make the
        folder that of this run: a start that fails leaves it to the former. All processes call it.

        Args:
            checkpointer: of the model, and of this state.
            best: whose file is gone on with, or, of a former training, goes; None leaves it.
            resume: True, False, or "auto": where there is a checkpoint.
            written: the YAML of OUTPUT_DIR/config.yaml.

        Raises:
            FileNotFoundError: see :func:`.resume.find_checkpoint`.
            ValueError: the checkpoint is of another model, or cannot be continued otherwise; or
                the processes find different ones.
        """
        folder, weights = self._cfg.OUTPUT_DIR, self._cfg.MODEL.WEIGHTS
        with stop_together():
            file = find_checkpoint(folder, resume)
            fetch_weights(file or weights)
        agree({"checkpoint": file})
        with stop_together():
            if file:
                self._check(file)
                checkpointer.load(file)
                if best:
                    best.resume()
            else:
                checkpointer.load(weights, checkpointables=[])
                if self._averaging:
                    self._averaging.begin()
        agree({"first iteration": self.start.iteration})
        record = checkpointer.record
        check_settings(self._cfg, record, strict=False)
        checkpointer.record = record and settings_of(self._cfg, record)
        with stop_together():
            if comm.is_main_process():
                if former := "" if file else newest_whole(folder):
                    logger.warning(
                        "OUTPUT_DIR has checkpoints of another training, %s the last. This one "
                        "starts anew and writes over them; another OUTPUT_DIR keeps both.",
                        former,
                    )
                    checkpointer.begin_anew()
                    if best:
                        best.begin_anew()
                write_config(folder, written, keep_former=bool(former))

    def _check(self, file: str) -> None:
        """Look at a checkpoint that is to be loaded: where it begins, what is set otherwise."""
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
            "parameters": parameter_names(self._model, self._steps.optimizer),
            "_trainer": self._steps.state_dict(),
        }
        if self._averaging:  # which is the model of the file
            state["trained_weights"] = self._averaging.trained()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state of a file that :meth:`begin` has checked; the model is the file's."""
        if self._averaging:
            self._averaging.begin()
        if "trained_weights" in state_dict:
            self._model.load_state_dict(state_dict["trained_weights"])
        saved, optimizer = state_dict["_trainer"], self._steps.optimizer
        momenta = continued_optimizer(
            saved["optimizer"],
            state_dict["parameters"],
            parameter_names(self._model, optimizer),
            optimizer,
        )
        iteration = self.start.iteration - 1
        self._steps.load_state_dict({**saved, "optimizer": momenta, "iteration": iteration})
        _set_iteration(self._scheduler, self.start.iteration)
        self.seed = state_dict["seed"]


def _set_iteration(scheduler: LRScheduler, iteration: int) -> None:
    """Set the learning rates of an iteration, by the schedule of now."""
    scheduler.last_epoch = iteration
    scheduler._last_lr = scheduler.get_lr()
    for group, rate in zip(scheduler.optimizer.param_groups, scheduler._last_lr):
        group["lr"] = rate


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """List the parameters in the order in which the optimizer's state counts them."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[p] for group in optimizer.param_groups for p in group["params"]]


def continued_optimizer(
    saved: Mapping[str, Any],
    saved_names: list[str],
    names: list[str],
    optimizer: torch.optim.Optimizer,
) -> dict[str, Any]:
    """
    Return the saved momentum with the hyperparameters of now, for the optimizer to load.

    Args:
        saved: the saved optimizer's state.
        saved_names, names: :func:`parameter_names` then and now.
    """
    state = {name: saved["state"].get(i) for i, name in enumerate(saved_names)}
    state = {i: state.get(name) for i, name in enumerate(names)}
    return {
        **optimizer.state_dict(),
        "state": {i: values for i, values in state.items() if values is not None},
    }
