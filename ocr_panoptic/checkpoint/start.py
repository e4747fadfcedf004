"""
What a run or a trained model starts from: weights, or the checkpoint where a training goes on.

A :class:`Start` is read once, and handed on to whatever needs to know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml
from detectron2.config import CfgNode

from ocr_panoptic.config.files import values_by_key
from ocr_panoptic.errors import MissingFileError, UserError

from .checkpointer import last_checkpoint
from .reading import fetch_weights, read_checkpoint
from .settings import IDENTITY

Resume = bool | Literal["auto"]  # "auto" resumes if there is a checkpoint


@dataclass
class Start:
    """
    Facts about the weights that a run or a trained model starts from.

    Attributes:
        weights: file or address; "" for random weights.
        settings: config values of the training that made the weights, by the keys' full names;
            None if the file does not hold them.
        classes: metadata of the classes of that training; None if unknown.
        progress: how far the training got that this run continues: "iteration", "images", "seed",
            "processes" and "config"; None if the run starts at iteration 0.
        content: the whole file, whose tensors stay there until they are used; None if it has not
            been read, has been taken, or was read by another process.
    """

    weights: str = ""
    settings: Mapping[str, Any] | None = None
    classes: Mapping[str, Any] | None = None
    progress: Mapping[str, Any] | None = None
    content: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "content": None}

    def take_content(self) -> Mapping[str, Any] | None:
        """Return the content, and forget it: a deleted file would keep its place on the disk."""
        content, self.content = self.content, None
        return content


def find_start(cfg: CfgNode, resume: Resume) -> Start:
    """
    Return the last checkpoint in OUTPUT_DIR if ``resume``, else the weights in MODEL.WEIGHTS.

    Raises:
        MissingFileError: ``resume`` is True, but the folder has no checkpoint; or the weights do
            not exist.
    """
    folder, trust_pickle = cfg.OUTPUT_DIR, cfg.MODEL.TRUST_PICKLE
    if resume and (file := last_checkpoint(folder)):
        return read_start(file, trust_pickle=trust_pickle, resumes=True)
    if resume is True:
        raise MissingFileError(
            f"--resume found no checkpoint to continue from in OUTPUT_DIR={folder}. Set OUTPUT_DIR "
            "to the folder of the run, or give --resume auto, which starts a new run if there is "
            "no checkpoint."
        )
    return read_start(cfg.MODEL.WEIGHTS, trust_pickle=trust_pickle)


def read_start(weights: str, *, trust_pickle: bool = False, resumes: bool = False) -> Start:
    """
    Return what a file of weights holds; its tensors stay in the file.

    Args:
        weights: file; address, from which the file is downloaded; or "" for random weights.
        trust_pickle: whether to read pickles with more than tensors and arrays, which can run code.
        resumes: whether a training goes on from the file, which must hold the training's state.
    """
    file = fetch_weights(weights)
    if not file.endswith(".pth"):
        return Start(weights)
    content = read_checkpoint(file, trust_pickle=trust_pickle)
    settings = classes = None
    if identity := content.get(IDENTITY):
        settings = values_by_key(yaml.safe_load(identity["settings"]))
        classes = identity["classes"]
    progress = _progress(file, content) if resumes else None
    return Start(weights, settings, classes, progress, content)


def _progress(file: str, content: Mapping[str, Any]) -> dict[str, Any]:
    state = content.get("trainer")
    if not isinstance(state, dict) or "_trainer" not in state:
        raise UserError(
            f"{file} contains weights, but not the training state that --resume needs. Start a "
            f"new run from the weights: set MODEL.WEIGHTS {file} and another OUTPUT_DIR."
        )
    kept = {key: state[key] for key in ("iteration", "images", "seed", "processes")}
    return {**kept, "config": yaml.safe_load(state["config"])}
