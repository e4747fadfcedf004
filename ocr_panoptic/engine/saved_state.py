"""The state of a training in a checkpoint of this package, checked before it is used."""

from collections.abc import Mapping
from typing import Any

import torch
import yaml

from ocr_panoptic.errors import UserError
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
        _expect(_is_number(state[key], least), key, state[key], f"a number of at least {least}")
    trainer = state["_trainer"]
    is_one = isinstance(trainer, dict) and "optimizer" in trainer
    _expect(is_one, "_trainer", trainer, "the state of an optimizer")
    number, hooks = trainer.get("iteration"), trainer.get("hooks", {})
    _expect(_is_number(number, 0), "_trainer's iteration", number, "a number of at least 0")
    _expect(isinstance(hooks, dict), "hooks", hooks, "their states")
    if "trained_weights" in state:
        _check_weights(state["trained_weights"], shapes)
    _check_optimizer(trainer["optimizer"], state["parameters"], shapes)
    scaler = trainer.get("grad_scaler") or {}
    is_one = isinstance(scaler, dict) and (
        not scaler or all(isinstance(scaler.get(key), int | float) for key in SCALER)
    )
    _expect(is_one, "grad_scaler", scaler, "the state of a loss scale")
    return {**state, "config": _config(state["config"])}


def _config(text: Any) -> dict[str, Any]:
    is_one = isinstance(text, str) and len(text) <= 2**20
    _expect(is_one, "config", text, "text of a config's length")
    config = yaml.safe_load(text)
    if isinstance(config, dict):
        check_keys("its config", config)
    solver = config.get("SOLVER") if isinstance(config, dict) else None
    is_one = isinstance(solver, dict) and (
        _is_number(solver.get("IMS_PER_BATCH"), 1)
        and _is_number(solver.get("REFERENCE_WORLD_SIZE"), 0)
    )
    _expect(is_one, "config", text, "sections of keys, SOLVER.IMS_PER_BATCH among them")
    return config


def _check_weights(weights: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check the weights that the model of the file is the average of."""
    is_all = isinstance(weights, dict) and weights.keys() == shapes.keys()
    _expect(is_all, "trained_weights", weights, "a tensor for each of the model")
    for name, value in weights.items():
        _expect_shape(value, shapes[name], f"trained_weights {name!r:.100}")


def _check_optimizer(optimizer: Any, names: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    groups = optimizer.get("param_groups") if isinstance(optimizer, dict) else None
    is_one = isinstance(groups, list) and all(
        isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups
    )
    _expect(is_one, "optimizer", optimizer, "groups of parameters")
    values = optimizer.get("state")
    is_one = isinstance(values, dict) and all(isinstance(v, dict) for v in values.values())
    _expect(is_one, "optimizer's state", values, "the momentum of each parameter")
    count = sum(len(group["params"]) for group in groups)
    is_all = isinstance(names, list) and len(names) == count
    _expect(is_all, "parameters", names, f"the names of its optimizer's {count} parameters")
    for number, name in enumerate(names):
        is_known = isinstance(name, str) and name in shapes
        _expect(is_known, "parameters", name, "a name of the model")
        for key, value in values.get(number, {}).items():
            if key == "step":  # AdamW's count
                _expect_shape(value, (), f"steps of {name}")
            elif key != "momentum_buffer" or value is not None:  # SGD without momentum has None
                _expect_shape(value, shapes[name], f"momentum of {name}")


def _expect_shape(value: Any, shape: tuple[int, ...], what: str) -> None:
    found = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
    _expect(found == shape, what, found, f"of the shape {shape}")


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _expect(holds: bool, key: str, value: Any, expected: str) -> None:
    if not holds:
        is_short = isinstance(value, str | int | float | tuple)
        found = f"{value!r:.60}" if is_short else type(value).__name__
        raise UserError(f"its {key} is {printable(found)}, not {expected}")
