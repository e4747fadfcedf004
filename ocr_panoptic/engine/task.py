"""The differences of the architectures, outside the model: one record for each.

SegFix is added by :mod:`.segfix`; an architecture of your own is added to ``TASKS`` as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.data import transforms as T
from detectron2.evaluation import DatasetEvaluator
from torch import Tensor, nn

from ocr_panoptic.data.panoptic.mapper import PanopticDatasetMapper
from ocr_panoptic.data.register import class_counts, semantic_class_count
from ocr_panoptic.data.semantic.augmentation import build_semantic_augmentation
from ocr_panoptic.data.semantic.mapper import SemanticDatasetMapper
from ocr_panoptic.data.training_stream import TrainingStream, build_training_stream
from ocr_panoptic.errors import UserError
from ocr_panoptic.modeling.context import context_class

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


def task_of(cfg: CfgNode) -> Task:
    """Return the record of MODEL.META_ARCHITECTURE."""
    name = cfg.MODEL.META_ARCHITECTURE
    if name not in TASKS:
        raise UserError(f"MODEL.META_ARCHITECTURE is {name}; it is {' or '.join(TASKS)}")
    return TASKS[name]


def training_loader(cfg: CfgNode) -> TrainingStream:
    """Return the batches of a training."""
    return build_training_stream(cfg, task_of(cfg).mapper(cfg, True), cfg.MODEL.DEVICE)


def _complete_panoptic_classes(cfg: CfgNode, dataset: str) -> None:
    metadata = MetadataCatalog.get(dataset)
    is_panoptic = metadata.get("evaluator_type") == "coco_panoptic_seg"
    # A test split without truth can be predicted alone.
    if not is_panoptic or (dataset in cfg.DATASETS.TRAIN and not metadata.get("panoptic_json")):
        raise UserError(
            f"{dataset} is not a data set that Panoptic-FPN can be trained on: it needs panoptic "
            'PNGs and their JSON, which a data file names under "panoptic" (datasets/README.md). '
            "COCO's are coco_2017_{train,val}_panoptic_separated."
        )
    things, semantic = class_counts(dataset)
    _complete_count(cfg, "ROI_HEADS", things, f"{dataset} has {things} (thing classes)")
    found = f"{dataset} has {semantic} (stuff classes + 1)"
    _complete_count(cfg, "SEM_SEG_HEAD", semantic, found)


def _complete_semantic_classes(cfg: CfgNode, dataset: str) -> None:
    if MetadataCatalog.get(dataset).get("evaluator_type") == "coco_panoptic_seg":
        raise UserError(
            f"{dataset} is a panoptic data set, and a semantic model knows no things: take a "
            'config of Panoptic-FPN, or name label PNGs under "semantic" (datasets/README.md).'
        )
    count = semantic_class_count(dataset)
    _complete_count(cfg, "SEM_SEG_HEAD", count, f"{dataset} has {count} classes")


def _complete_count(cfg: CfgNode, head: str, count: int, found: str) -> None:
    node = cfg.MODEL[head]
    if node.NUM_CLASSES == 0:
        node.NUM_CLASSES = count
    elif count != node.NUM_CLASSES:
        raise UserError(
            f"MODEL.{head}.NUM_CLASSES is {node.NUM_CLASSES}, but {found}. "
            f"Set it to {count}, or to 0 to take it from the data."
        )


TASKS = {  # by MODEL.META_ARCHITECTURE
    "PanopticFPN": Task(
        title="Panoptic-FPN",
        mapper=PanopticDatasetMapper,
        complete_classes=_complete_panoptic_classes,
        classes=lambda cfg: (
            f"{cfg.MODEL.ROI_HEADS.NUM_CLASSES} thing and "
            f"{cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES - 1} stuff classes"
        ),
        test_augmentation=lambda cfg: T.ResizeShortestEdge(
            cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST
        ),
        semantic_logits=lambda model, inputs: model.sem_seg_head.layers(
            model.backbone(model.preprocess_image(inputs).tensor)
        ),
    ),
    "OCRSemanticSegmentor": Task(
        title="Semantic segmentation",
        mapper=lambda cfg, is_train: SemanticDatasetMapper(
            cfg, is_train, keep_labels=context_class(cfg).needs_truth
        ),
        complete_classes=_complete_semantic_classes,
        classes=lambda cfg: f"{cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES} classes",
        test_augmentation=lambda cfg: T.AugmentationList(
            build_semantic_augmentation(cfg, is_train=False)
        ),
        semantic_logits=lambda model, inputs: model.layers(inputs),
    ),
}
