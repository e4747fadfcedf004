"""The tasks: the differences between the architectures outside the model."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.data import transforms as T
from detectron2.evaluation import DatasetEvaluator
from torch import Tensor, nn

from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.data.panoptic.mapper import PanopticDatasetMapper
from ocr_panoptic.data.register import class_counts, semantic_class_count
from ocr_panoptic.data.semantic.augmentation import (
    build_offset_augmentation,
    build_semantic_augmentation,
)
from ocr_panoptic.data.semantic.mapper import SemanticDatasetMapper
from ocr_panoptic.data.training_stream import TrainingStream, build_training_stream
from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.build import build_evaluator
from ocr_panoptic.modeling.context import context_class
from ocr_panoptic.segfix import OffsetEvaluator
from ocr_panoptic.segfix.truth import OffsetTruth, read_segment_map, true_offset_labels

Mapper = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """
    The parts of an architecture outside the model.

    Attributes:
        title: display name.
        mapper: (config, is it for training?) -> function that maps a record to the model's input.
        complete_classes: (config, data set) -> None. Replaces the config's class counts of 0 by the
            data set's, and raises UserError if counts differ or the data are unsuitable.
        classes: completed config -> text with the numbers of classes.
        test_augmentation: config -> transform that resizes test images.
        semantic_logits: (model, inputs) -> logits of the semantic head for a batch, computed by
            the semantic network only, with each image seen once.
        evaluator: (config, data set, output folder) -> evaluator of the predictions.
    """

    title: str
    mapper: Callable[[CfgNode, bool], Mapper]
    complete_classes: Callable[[CfgNode, str], None]
    classes: Callable[[CfgNode], str]
    test_augmentation: Callable[[CfgNode], T.Augmentation]
    semantic_logits: Callable[[Any, list[dict]], Tensor | tuple[Tensor, Tensor]]
    evaluator: Callable[[CfgNode, str, Path], DatasetEvaluator] = build_evaluator


def task_of(cfg: CfgNode) -> Task:
    """Return the task of MODEL.META_ARCHITECTURE."""
    name = cfg.MODEL.META_ARCHITECTURE
    if name not in TASKS:
        raise UserError(f"MODEL.META_ARCHITECTURE is {name}; it is {' or '.join(sorted(TASKS))}")
    return TASKS[name]


def training_loader(cfg: CfgNode) -> TrainingStream:
    """Build the stream of training batches."""
    return build_training_stream(cfg, task_of(cfg).mapper(cfg, True), cfg.MODEL.DEVICE)


def _complete_count(cfg: CfgNode, head: str, count: int, found: str) -> None:
    """Set a head's number of classes from the data if it is 0; refuse a different number."""
    node = cfg.MODEL[head]
    if node.NUM_CLASSES == 0:
        node.NUM_CLASSES = count
    elif count != node.NUM_CLASSES:
        raise UserError(
            f"MODEL.{head}.NUM_CLASSES is {node.NUM_CLASSES}, but {found}. "
            f"Set it to {count}, or to 0 to take it from the data."
        )


def _complete_panoptic_classes(cfg: CfgNode, dataset: str) -> None:
    metadata = MetadataCatalog.get(dataset)
    is_panoptic = metadata.get("evaluator_type") == "coco_panoptic_seg"
    # A test split without truth can only be predicted.
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


def _semantic_test_augmentation(cfg: CfgNode) -> T.Augmentation:
    return T.AugmentationList(build_semantic_augmentation(cfg, is_train=False))


def _check_segments(cfg: CfgNode, dataset: str) -> None:
    """Refuse data without regions; any classes will do."""
    if MetadataCatalog.get(dataset).get("evaluator_type") not in ("sem_seg", "coco_panoptic_seg"):
        raise UserError(f"{dataset} has neither semantic nor panoptic labels, which SegFix needs.")


def _offset_mapper(cfg: CfgNode, is_train: bool) -> SemanticDatasetMapper:
    """
    Return the mapper of SegFix, which computes offset labels from a record's classes or segments.

    Offsets do not depend on the classes, so data sets with different classes can be mixed.
    """
    distance = cfg.MODEL.SEGFIX.BOUNDARY_DISTANCE
    names = (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST)
    maps = {name: MetadataCatalog.get(name).get("label_map") for name in names}
    return SemanticDatasetMapper(
        is_train,
        augmentations=(
            build_offset_augmentation(cfg, OffsetTruth(distance))
            if is_train
            else build_semantic_augmentation(cfg, is_train=False)
        ),
        image_format=cfg.INPUT.FORMAT,
        channels=cfg.INPUT.CHANNELS,
        num_classes=VOID_LABEL,  # accepts every class
        label_maps={name: found for name, found in maps.items() if found},
        read_labels=read_segment_map,
        truth_of_file=functools.partial(true_offset_labels, boundary_distance=distance),
    )


def _no_semantic_logits(model: nn.Module, inputs: list[dict]) -> Tensor:
    raise UserError("SegFix predicts offsets, not classes.")


TASKS = {  # MODEL.META_ARCHITECTURE -> task
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
        test_augmentation=_semantic_test_augmentation,
        semantic_logits=lambda model, inputs: model.layers(inputs),
    ),
    "SegFix": Task(
        title="SegFix",
        mapper=_offset_mapper,
        complete_classes=_check_segments,
        classes=lambda cfg: (
            f"regions of any classes, boundaries {cfg.MODEL.SEGFIX.BOUNDARY_DISTANCE} pixels wide"
        ),
        test_augmentation=_semantic_test_augmentation,
        semantic_logits=_no_semantic_logits,
        evaluator=lambda cfg, dataset, folder: OffsetEvaluator(dataset),
    ),
}
