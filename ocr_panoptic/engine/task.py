"""The differences of the architectures, outside the model: one record for each, which
:mod:`.panoptic`, :mod:`.semantic` and :mod:`.segfix` add."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from detectron2.config import CfgNode
from detectron2.data import transforms as T
from detectron2.evaluation import DatasetEvaluator
from torch import Tensor, nn

from ocr_panoptic.data.training_stream import TrainingStream, build_training_stream
from ocr_panoptic.errors import UserError

Mapper = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """
    Attributes:
        title: its name for people.
        mapper: (config, is it for training?) -> from a record to the model's input.
        complete_classes: (config, data set): takes the class counts from a data set where the
            config has 0, and raises ValueError where they differ or the data are of another kind.
        classes: completed config -> their numbers, in words.
        test_augmentation: config -> how an image is resized for inference.
        semantic_logits: (model, inputs) -> what the semantic head's ``layers`` returns for a batch,
            by the semantic network alone, each image seen once.
        evaluator: (config, data set, folder of what it writes) -> evaluator of what the model
            predicts; None for the evaluators of the data set's kind.
    """

    title: str
    mapper: Callable[[CfgNode, bool], Mapper]
    complete_classes: Callable[[CfgNode, str], None]
    classes: Callable[[CfgNode], str]
    test_augmentation: Callable[[CfgNode], T.Augmentation]
    semantic_logits: Callable[[nn.Module, list[dict]], Tensor | tuple[Tensor, Tensor]]
    evaluator: Callable[[CfgNode, str, str], DatasetEvaluator] | None = None


TASKS: dict[str, Task] = {}  # by MODEL.META_ARCHITECTURE


def task_of(cfg: CfgNode) -> Task:
    """Return the record of MODEL.META_ARCHITECTURE."""
    name = cfg.MODEL.META_ARCHITECTURE
    if name not in TASKS:
        raise UserError(f"MODEL.META_ARCHITECTURE is {name}; it is {' or '.join(sorted(TASKS))}")
    return TASKS[name]


def training_loader(cfg: CfgNode) -> TrainingStream:
    """Return the batches of a training."""
    return build_training_stream(cfg, task_of(cfg).mapper(cfg, True), cfg.MODEL.DEVICE)


def complete_count(cfg: CfgNode, head: str, count: int, found: str) -> None:
    """
    Take the number of classes of a head from the data, or refuse another number.

    Args:
        head: part of MODEL.
        count: number of the data set's classes.
        found: the data set and its number in words, for the message.
    """
    node = cfg.MODEL[head]
    if node.NUM_CLASSES == 0:
        node.NUM_CLASSES = count
    elif count != node.NUM_CLASSES:
        raise UserError(
            f"MODEL.{head}.NUM_CLASSES is {node.NUM_CLASSES}, but {found}. "
            f"Set it to {count}, or to 0 to take it from the data."
        )
