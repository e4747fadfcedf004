"""The state of a training in a checkpoint of any origin, checked before it is used."""

from collections.abc import Mapping
from typing import Any

import torch

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.bounded_yaml import MAX_BYTES, parse_yaml
from ocr_panoptic.formats.files import printable

from .config_files import check_keys

NUMBERS = {"iteration": 0, "images": 0, "seed": 0, "processes": 1}  # and their least values
KEYS = {*NUMBERS, "config", "parameters", "_trainer"}
SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


def checked_state(state: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
    """
    Args:
        state: that :meth:`.TrainingState.state_dict` has saved.
        shapes: of the model's parameters, under the names that the state has for them.

    Returns:
        the state, with "config" as sections of keys; None where it is no such state

    Raises:
        ValueError: a part is not what a training saves.
    """
    if not isinstance(state, dict) or not state.keys() >= KEYS:
        return None
    for key, least in NUMBERS.items():
        if not _is_number(state[key], least):
            raise _fault(key, state[key], f"a number of at least {least}")
    trainer = state["_trainer"]
    if not isinstance(trainer, dict) or "optimizer" not in trainer:
        raise _fault("_trainer", trainer, "the state of an optimizer")
    if not _is_number(trainer.get("iteration"), 0):
        raise _fault("_trainer's iteration", trainer.get("iteration"), "a number of at least 0")
    if not isinstance(hooks := trainer.get("hooks", {}), dict):
        raise _fault("hooks", hooks, "their states")
    if "trained_weights" in state:
        _check_weights(state["trained_weights"], shapes)
    _check_optimizer(trainer["optimizer"], state["parameters"], shapes)
    scaler = trainer.get("grad_scaler") or {}
    if not isinstance(scaler, dict) or (
        scaler and not all(isinstance(scaler.get(key), int | float) for key in SCALER)
    ):
        raise _fault("grad_scaler", scaler, "the state of a loss scale")
    return {**state, "config": _config(state["config"])}


def _config(text: Any) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > MAX_BYTES:
        raise _fault("config", text, "text of a config's length")
    config = parse_yaml(text, "its config")
    if isinstance(config, dict):
        check_keys("its config", config)
    solver = config.get("SOLVER") if isinstance(config, dict) else None
    if not (
        isinstance(solver, dict)
        and _is_number(solver.get("IMS_PER_BATCH"), 1)
        and _is_number(solver.get("REFERENCE_WORLD_SIZE"), 0)
    ):
        raise _fault("config", text, "sections of keys, SOLVER.IMS_PER_BATCH among them")
    return config


def _check_weights(weights: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check the weights that the model of the file is the average of."""
    if not isinstance(weights, dict) or weights.keys() != shapes.keys():
        raise _fault("trained_weights", weights, "a tensor for each of the model")
    for name, value in weights.items():
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        if shape != shapes[name]:
            raise _fault(f"trained_weights {name!r:.100}", shape, f"of the shape {shapes[name]}")


def _check_optimizer(optimizer: Any, names: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    groups = optimizer.get("param_groups") if isinstance(optimizer, dict) else None
    if not isinstance(groups, list) or not all(
        isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups
    ):
        raise _fault("optimizer", optimizer, "groups of parameters")
    values = optimizer.get("state")
    if not isinstance(values, dict) or not all(isinstance(v, dict) for v in values.values()):
        raise _fault("optimizer's state", values, "the momentum of each parameter")
    count = sum(len(group["params"]) for group in groups)
    if not isinstance(names, list) or len(names) != count:
        raise _fault("parameters", names, f"the names of its optimizer's {count} parameters")
    for number, name in enumerate(names):
        if not isinstance(name, str) or name not in shapes:
            raise _fault("parameters", name, "a name of the model")
        for key, value in values.get(number, {}).items():
            expected = () if key == "step" else shapes[name]  # AdamW's count of steps
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            # SGD without momentum has None.
            if shape != expected and not (key == "momentum_buffer" and value is None):
                what = "steps" if key == "step" else "momentum"
                raise _fault(f"{what} of {name}", shape, f"of the shape {expected}")


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _fault(key: str, value: Any, expected: str) -> ValueError:
    found = (
        f"{value!r:.60}" if isinstance(value, str | int | float | tuple) else type(value).__name__
    )
    return UserError(f"its {key} is {printable(found)}, not {expected}")
