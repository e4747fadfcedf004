"""Where a resumed training goes on, and what of the saved one it takes."""

import logging
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
import yaml
from detectron2.config import CfgNode
from detectron2.solver import LRScheduler
from detectron2.utils import comm
from tabulate import tabulate
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer

from .config_files import values_by_key

logger = logging.getLogger(__name__)

Resume = bool | Literal["auto"]
# Keys that a resumed run does not read, and those that it takes from the saved one.
NOT_COMPARED = {"OUTPUT_DIR", "MODEL.WEIGHTS", "SEED", "VERSION"}


class Position(NamedTuple):
    """
    Attributes:
        iteration: the next one.
        images: of all processes, that have been trained on.
    """

    iteration: int
    images: int


def find_checkpoint(checkpointer: SafeCheckpointer, resume: Resume) -> str:
    """
    Args:
        resume: True, False, or "auto": where there is a checkpoint.

    Returns:
        the last whole checkpoint of OUTPUT_DIR, or "" for a new run

    Raises:
        FileNotFoundError: there is none, and ``resume`` is True.
    """
    file = checkpointer.get_checkpoint_file() if resume else ""
    if resume is True and not file:
        raise FileNotFoundError(
            f"--resume found no checkpoint in OUTPUT_DIR={checkpointer.save_dir} (no whole file "
            "model_*.pth). Set OUTPUT_DIR to the run to be resumed, leave --resume out, or have "
            "--resume auto, which starts where there is none."
        )
    return file


def saved_state(file: str) -> dict[str, Any]:
    """
    What :meth:`.Trainer.state_dict` has saved; its tensors stay in the file until they are used.

    Raises:
        ValueError: the file has weights alone.
    """
    state = torch.load(file, map_location="cpu", mmap=True, weights_only=True).get("trainer")
    if state is None:
        raise ValueError(
            f"{file} has weights, but not the state of a training that --resume needs. Start from "
            f"the weights: MODEL.WEIGHTS {file} and another OUTPUT_DIR, without --resume."
        )
    return state


def position_after(cfg: CfgNode, state: Mapping[str, Any]) -> Position:
    """
    Args:
        cfg: of now, scaled to the number of processes.
        state: that :meth:`.Trainer.state_dict` has saved.

    Raises:
        ValueError: the training is already longer than the config of now wants it.
    """
    iteration, batch = state["iteration"] + 1, cfg.SOLVER.IMS_PER_BATCH
    saved = yaml.safe_load(state["config"])["SOLVER"] if "config" in state else cfg.SOLVER
    images = state.get("images", iteration * saved["IMS_PER_BATCH"])
    share = _share(batch, cfg.SOLVER.REFERENCE_WORLD_SIZE)
    saved_share = _share(saved["IMS_PER_BATCH"], saved["REFERENCE_WORLD_SIZE"])
    if share and share == saved_share and batch != saved["IMS_PER_BATCH"]:
        iteration = images // batch  # another number of processes has scaled the schedule
    if iteration > cfg.SOLVER.MAX_ITER:
        raise ValueError(
            f"The checkpoint has {iteration} iterations, but SOLVER.MAX_ITER is "
            f"{cfg.SOLVER.MAX_ITER}. Set it to {iteration} or more, or evaluate the checkpoint "
            "(--eval-only --resume)."
        )
    return Position(iteration, images)


def _share(batch: int, reference: int) -> float | None:
    """Images of a process, where batch and schedule follow the number of processes."""
    return batch / reference if reference else None


def set_iteration(scheduler: LRScheduler, iteration: int) -> None:
    """Learning rates are those of an iteration, by the schedule of now."""
    scheduler.last_epoch = iteration
    scheduler._last_lr = scheduler.get_lr()
    for group, rate in zip(scheduler.optimizer.param_groups, scheduler._last_lr):
        group["lr"] = rate


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """In the order in which the optimizer's state counts them."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[p] for group in optimizer.param_groups for p in group["params"]]


def continued_optimizer(
    saved: Mapping[str, Any],
    saved_names: list[str] | None,
    names: list[str],
    optimizer: torch.optim.Optimizer,
) -> dict[str, Any]:
    """
    The saved momentum with the hyperparameters of now.

    Args:
        saved: the saved optimizer's state.
        saved_names, names: :func:`parameter_names` then and now; None in a file without them.

    Returns:
        a state that the optimizer can load

    Raises:
        ValueError: a file without names has other groups of parameters.
    """
    now = optimizer.state_dict()
    if saved_names is None:
        former, groups = saved["param_groups"], now["param_groups"]
        sizes, sizes_now = ([len(group["params"]) for group in of] for of in (former, groups))
        # One group has the model's order, and so have backbone and head; others may mix it.
        if sum(sizes) != len(names) or (len(sizes) > 1 and sizes != sizes_now):
            raise ValueError(
                f"The checkpoint's optimizer has groups of {sizes} parameters, this run's of "
                f"{sizes_now}, and their names were not saved. Undo what has changed in SOLVER, or "
                "start a new run from it: MODEL.WEIGHTS FILE and another OUTPUT_DIR, without "
                "--resume."
            )
        saved_names = names
    state = {name: saved["state"].get(i) for i, name in enumerate(saved_names)}
    state = {i: state.get(name) for i, name in enumerate(names)}
    return {**now, "state": {i: values for i, values in state.items() if values is not None}}


def difference_table(cfg: CfgNode, state: Mapping[str, Any]) -> str:
    """What is set otherwise than in the saved run, or "" where nothing is."""
    saved = values_by_key(yaml.safe_load(state.get("config", "{}")))
    rows = [
        (key, saved[key], value)
        for key, value in values_by_key(yaml.safe_load(cfg.dump())).items()
        if key not in NOT_COMPARED and saved.get(key, value) != value
    ]
    processes = comm.get_world_size()
    if state.get("processes", processes) != processes:
        rows.append(("processes", state["processes"], processes))
    return tabulate(rows, headers=["key", "saved run", "this run"]) if rows else ""
