"""Resuming: where a training goes on, and what of the saved one it takes."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
import yaml
from detectron2.config import CfgNode
from detectron2.utils import comm
from tabulate import tabulate
from torch import nn

from ocr_panoptic.checkpoint import fetch_weights, last_checkpoint, newest_whole
from ocr_panoptic.checkpoint.fit import fit_of
from ocr_panoptic.checkpoint.reading import AGAIN, read_checkpoint
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.modeling.build import build_network

from .config_files import values_by_key
from .optimizer import COUNTERS, MOMENTA
from .saved_state import checked_state
from .schedule import scaled

BEFORE = "Remove it, and --resume takes the checkpoint before it, if there is one."
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


def check_start(cfg: CfgNode, checkpoint: str, *, training: bool) -> None:
    """
    Check what can be known of a run's weights before any data are read.

    Args:
        cfg: completed, not scaled to the number of processes.
        checkpoint: of OUTPUT_DIR, to go on from or to evaluate; "" for MODEL.WEIGHTS.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: the weights cannot be downloaded.
        ValueError: there is nothing to evaluate, the weights are no checkpoint, or a training
            cannot go on from the checkpoint, see :func:`continued_state` and
            :func:`position_after`.
    """
    if not training:
        check_trained_weights(checkpoint or cfg.MODEL.WEIGHTS)
    elif checkpoint:
        cfg = scaled(cfg, comm.get_world_size())
        with torch.device("meta"):  # shapes without values
            model = build_network(cfg)
        position_after(cfg, continued_state(cfg, checkpoint, model))
    elif (weights := fetch_weights(cfg.MODEL.WEIGHTS)) and not cfg.MODEL.TRUST_PICKLE:
        read_checkpoint(weights, mmap=True)  # damaged, or hostile


def find_checkpoint(folder: str, resume: Resume) -> str:
    """
    Args:
        folder: OUTPUT_DIR.
        resume: True, False, or "auto": where there is a checkpoint.

    Returns:
        the last whole checkpoint of the folder, or "" for a new run

    Raises:
        FileNotFoundError: there is none, and ``resume`` is True.
    """
    file = last_checkpoint(folder) if resume else ""
    if resume is True and not file:
        if former := newest_whole(folder):
            raise MissingFileError(
                f"--resume found no checkpoint of the last training in OUTPUT_DIR={folder}, which "
                f"ended before its first one; {former} is of another training before it. Leave "
                "--resume out to start again or, to go on with that other training, remove "
                f"{folder}/last_checkpoint."
            )
        raise MissingFileError(
            f"--resume found no checkpoint in OUTPUT_DIR={folder} (no whole file "
            "model_*.pth). Set OUTPUT_DIR to the run to be resumed, leave --resume out, or have "
            "--resume auto, which starts where there is none."
        )
    return file


def check_trained_weights(weights: str) -> None:
    """
    Raises:
        FileNotFoundError, OSError: see :func:`.fetch_weights`.
        ValueError: there are none.
    """
    if not weights:
        raise UserError(
            "MODEL.WEIGHTS is empty, but inference needs trained weights. "
            "Set it to a checkpoint, such as OUTPUT_DIR/model_final.pth."
        )
    fetch_weights(weights)


def continued_state(cfg: CfgNode, file: str, model: nn.Module) -> dict[str, Any]:
    """
    Return what :meth:`.TrainingState.state_dict` has saved, see
    :func:`.saved_state.checked_state`; its tensors stay in the file until they are used.

    Args:
        file: the checkpoint.
        model: of ``cfg``, which goes on; only its shapes matter.

    Raises:
        ValueError: the file or the state is damaged, it has weights alone, or is of another model;
            then the keys that are set otherwise than in the saved run are listed.
    """
    try:
        checkpoint = read_checkpoint(file, trust_pickle=cfg.MODEL.TRUST_PICKLE, mmap=True)
    except ValueError as e:
        raise UserError(f"{str(e).removesuffix(AGAIN).rstrip('.')}. {BEFORE}") from e
    weights = checkpoint["model"].get("state_dict", checkpoint["model"])
    found = {name: tuple(v.shape) for name, v in weights.items()}
    try:
        state = checked_state(checkpoint.get("trainer"), found)
    except ValueError as e:
        raise UserError(f"{file} holds a damaged state of its training: {e}. {BEFORE}") from e
    if state is None:
        raise UserError(
            f"{file} has weights, but not the state of a training that --resume needs. Start from "
            f"the weights: MODEL.WEIGHTS {file} and another OUTPUT_DIR, without --resume."
        )
    fit = fit_of(found, {k: tuple(v.shape) for k, v in model.state_dict().items()})
    if fit.faults or fit.unused:
        table = difference_table(cfg, state)
        raise UserError(
            f"The run cannot be resumed with this config, whose model is another one than that of "
            f"{file}: {len(fit.faults) + len(fit.unused)} tensors differ.{fit.listing(3)}\n"
            + (f"Set otherwise than in the saved run:\n{table}\n" if table else "")
            + f"Undo what has changed, or start another run from its weights: MODEL.WEIGHTS {file} "
            "and another OUTPUT_DIR, without --resume."
        )
    _check_optimizer(cfg, file, state)
    return state


def _check_optimizer(cfg: CfgNode, file: str, state: Mapping[str, Any]) -> None:
    """Check that the state is of the optimizer that goes on with it."""
    kept = {name: MOMENTA[name] | COUNTERS[name] for name in MOMENTA}
    expected = kept[cfg.SOLVER.OPTIMIZER]
    for values in state["_trainer"]["optimizer"]["state"].values():
        if values and values.keys() != expected:  # without momentum SGD keeps nothing
            found = next((name for name, keys in kept.items() if keys == values.keys()), None)
            raise UserError(
                f"{file} has the state of {found or 'another optimizer'} "
                f"({', '.join(map(str, values))} of each parameter), and "
                f"SOLVER.OPTIMIZER is {cfg.SOLVER.OPTIMIZER}, which goes on with "
                f"{', '.join(sorted(expected))}. Undo what has changed, or start another run from "
                f"its weights: MODEL.WEIGHTS {file} and another OUTPUT_DIR, without --resume."
            )


def position_after(cfg: CfgNode, state: Mapping[str, Any]) -> Position:
    """
    Args:
        cfg: of now, scaled to the number of processes.
        state: of :func:`continued_state`.

    Raises:
        ValueError: the training is already longer than the config of now wants it.
    """
    iteration, batch = state["iteration"] + 1, cfg.SOLVER.IMS_PER_BATCH
    saved, images = state["config"]["SOLVER"], state["images"]
    share = _share(batch, cfg.SOLVER.REFERENCE_WORLD_SIZE)
    saved_share = _share(saved["IMS_PER_BATCH"], saved["REFERENCE_WORLD_SIZE"])
    if share and share == saved_share and batch != saved["IMS_PER_BATCH"]:
        iteration = images // batch  # another number of processes has scaled the schedule
    if iteration > cfg.SOLVER.MAX_ITER:
        raise UserError(
            f"The checkpoint has {iteration} iterations, but SOLVER.MAX_ITER is "
            f"{cfg.SOLVER.MAX_ITER}. Set it to {iteration} or more, or evaluate the checkpoint "
            "(--eval-only --resume)."
        )
    return Position(iteration, images)


def _share(batch: int, reference: int) -> float | None:
    """Images of a process, where batch and schedule follow the number of processes."""
    return batch / reference if reference else None


def difference_table(cfg: CfgNode, state: Mapping[str, Any]) -> str:
    """Return what is set otherwise than in the saved run, or "" where nothing is. ``state`` is of
    :func:`continued_state`."""
    saved = values_by_key(state["config"])
    rows = [
        (key, saved[key], value)
        for key, value in values_by_key(yaml.safe_load(cfg.dump())).items()
        if key not in NOT_COMPARED and saved.get(key, value) != value
    ]
    if state["processes"] != comm.get_world_size():
        rows.append(("processes", state["processes"], comm.get_world_size()))
    return tabulate(rows, headers=["key", "saved run", "this run"]) if rows else ""
