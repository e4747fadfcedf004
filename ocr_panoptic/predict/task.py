"""
What each architecture needs besides its model, such as a mapper and an evaluator.

:mod:`.panoptic`, :mod:`.semantic` and :mod:`.segfix` each add a :class:`Task` to ``TASKS``;
:mod:`.segfix` also adds itself to ``REFINERS``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from detectron2.config import CfgNode
from detectron2.data import transforms as T
from detectron2.evaluation import DatasetEvaluator
from torch import nn

from ocr_panoptic.errors import UserError

Mapper = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """
    What an architecture needs besides its model.

    Attributes:
        title: display name.
        mapper: returns the data set mapper for training or evaluation.
        complete_classes: replaces class counts of 0 in a config with a data set's counts; raises
            UserError if a nonzero count differs, or if the data set is unsuitable.
        classes: returns a text that says how many classes a completed config has.
        test_augmentation: returns the transform that resizes test images.
        evaluator: returns the evaluator for a config, data set and output folder.
        has_classes: whether the model predicts classes. All data sets of a config must then have
            the same classes.
    """

    title: str
    mapper: Callable[[CfgNode, bool], Mapper]
    complete_classes: Callable[[CfgNode, str], None]
    classes: Callable[[CfgNode], str]
    test_augmentation: Callable[[CfgNode], T.Augmentation]
    evaluator: Callable[[CfgNode, str, Path], DatasetEvaluator]
    has_classes: bool = True


class Refiner(NamedTuple):
    """A second network, which refines the results of the models whose configs name it."""

    config_of: Callable[[CfgNode], CfgNode | None]  # its completed config; None if none is named
    with_input: Callable[[CfgNode, Mapper], Mapper]  # mapper, and the refiner's input for an image
    refined: Callable[[CfgNode, nn.Module], nn.Module]  # model whose results it refines


TASKS: dict[str, Task] = {}  # MODEL.META_ARCHITECTURE -> task
REFINERS: dict[str, Refiner] = {}  # name of the model's input for the refiner -> refiner


def task_of(cfg: CfgNode) -> Task:
    """Return the :class:`Task` of the architecture that MODEL.META_ARCHITECTURE names."""
    name = cfg.MODEL.META_ARCHITECTURE
    if name not in TASKS:
        raise UserError(
            f"MODEL.META_ARCHITECTURE is {name}; expected one of {', '.join(sorted(TASKS))}. "
            "Name a config that sets it (--config-file). `ocr-panoptic configs` lists all configs; "
            "those for your own data begin with Custom."
        )
    return TASKS[name]


def refiner_configs(cfg: CfgNode) -> dict[str, CfgNode]:
    """Return the completed configs of the refiners that a config names, keyed as ``REFINERS``."""
    found = {name: refiner.config_of(cfg) for name, refiner in REFINERS.items()}
    return {name: own for name, own in found.items() if own is not None}


def evaluation_mapper(cfg: CfgNode) -> Mapper:
    """Return the mapper for test images, whose results also have the inputs of refiners."""
    mapper = task_of(cfg).mapper(cfg, False)
    for name, own in refiner_configs(cfg).items():
        mapper = REFINERS[name].with_input(own, mapper)
    return mapper


def refined(cfg: CfgNode, model: nn.Module) -> nn.Module:
    """Return a model for inference, whose results the refiners that the config names refine."""
    for name in refiner_configs(cfg):
        model = REFINERS[name].refined(cfg, model)
    return model


def complete_count(cfg: CfgNode, head: str, count: int, found: str) -> None:
    """
    Set a head's number of classes to ``count`` if it is 0; refuse a number other than ``count``.

    Args:
        head: section of MODEL, such as "ROI_HEADS".
        count: number of the data set's classes.
        found: text that names the data set and its number of classes, for the error message.
    """
    node = cfg.MODEL[head]
    if node.NUM_CLASSES == 0:
        node.NUM_CLASSES = count
    elif count != node.NUM_CLASSES:
        raise UserError(
            f"MODEL.{head}.NUM_CLASSES is {node.NUM_CLASSES}, but {found}. "
            f"Set it to {count}, or to 0 to take it from the data."
        )
