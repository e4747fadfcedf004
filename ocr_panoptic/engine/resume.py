"""Compare a resumed run with the saved one: its position, settings and optimizer."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
import yaml
from detectron2.config import CfgNode
from detectron2.utils import comm
from torch import nn

from ocr_panoptic.config.files import named_as_built, values_by_key
from ocr_panoptic.errors import UserError

SYNCHRONISED = ("BN", "SyncBN", "naiveSyncBN")
# Keys that a resumed run does not read, or takes from the saved run.
NOT_COMPARED = {"OUTPUT_DIR", "MODEL.WEIGHTS", "SEED", "VERSION"}


def position_after(cfg: CfgNode, progress: Mapping[str, Any]) -> tuple[int, int]:
    """Return a run's next iteration, and the number of images trained on so far."""
    iteration, batch = progress["iteration"] + 1, cfg.SOLVER.IMS_PER_BATCH
    saved, images = progress["config"]["SOLVER"], progress["images"]
    if saved.get("OPTIMIZER", cfg.SOLVER.OPTIMIZER) != cfg.SOLVER.OPTIMIZER:
        raise UserError(
            f"SOLVER.OPTIMIZER is {cfg.SOLVER.OPTIMIZER}, but the run was trained with "
            f"{saved['OPTIMIZER']}. Set SOLVER.OPTIMIZER to {saved['OPTIMIZER']}, or start a new "
            "run from the checkpoint: set MODEL.WEIGHTS and another OUTPUT_DIR, without --resume."
        )
    reference, saved_reference = cfg.SOLVER.REFERENCE_WORLD_SIZE, saved["REFERENCE_WORLD_SIZE"]
    if (
        reference
        and saved_reference
        and batch != saved["IMS_PER_BATCH"]
        and batch / reference == saved["IMS_PER_BATCH"] / saved_reference
    ):
        iteration = images // batch  # the number of processes changed, and scaled the schedule
    if iteration > cfg.SOLVER.MAX_ITER:
        raise UserError(
            f"The checkpoint is from iteration {iteration}, but SOLVER.MAX_ITER is "
            f"{cfg.SOLVER.MAX_ITER}. Set SOLVER.MAX_ITER to {iteration} or more, or evaluate the "
            "checkpoint (--eval-only --resume)."
        )
    return iteration, images


def differences(cfg: CfgNode, progress: Mapping[str, Any]) -> str:
    """Return, as one line, the settings that have changed since the saved run, or ""."""
    saved = {
        **named_as_built(values_by_key(progress["config"])),
        "processes": progress["processes"],
    }
    now = values_by_key(yaml.safe_load(cfg.dump())) | {"processes": comm.get_world_size()}
    return ", ".join(
        f"{key} {value} (was {saved[key]})"
        for key, value in now.items()
        if key not in NOT_COMPARED
        and saved.get(key, value) != value
        # An earlier version saved the norms that the processes could run.
        and not (key.endswith("NORM") and {value, saved[key]} <= {*SYNCHRONISED})
    )


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the parameters' names in the order of the optimizer's state."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[p] for group in optimizer.param_groups for p in group["params"]]


def continued_optimizer(
    saved: Mapping[str, Any],
    saved_names: list[str],
    names: list[str],
    optimizer: torch.optim.Optimizer,
) -> dict[str, Any]:
    """
    Return the state that a resumed run's optimizer loads: saved momenta, current hyperparameters.

    Args:
        saved: state of the saved optimizer.
        saved_names: names of the parameters in the saved optimizer's order.
        names: names of the parameters in the current optimizer's order, which can be different.
        optimizer: current optimizer.
    """
    state = {name: saved["state"].get(i) for i, name in enumerate(saved_names)}
    momenta = {i: state[name] for i, name in enumerate(names) if state.get(name) is not None}
    momenta = copy.deepcopy(momenta)  # the tensors of a checkpoint lie in its file
    return {**optimizer.state_dict(), "state": momenta}
