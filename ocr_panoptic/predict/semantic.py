"""Add the semantic models to ``TASKS``, the table of architectures."""

from detectron2.config import CfgNode
from detectron2.data import transforms as T

from ocr_panoptic.data.catalog import registered_metadata, semantic_class_count
from ocr_panoptic.data.metadata import INSTANCES, PANOPTIC, data_file_advice
from ocr_panoptic.data.semantic.augmentation import build_semantic_augmentation
from ocr_panoptic.data.semantic.mapper import SemanticDatasetMapper
from ocr_panoptic.errors import UserError
from ocr_panoptic.modeling.context import context_class

from .evaluators import build_evaluator
from .task import TASKS, Task, complete_count


def _complete_semantic_classes(cfg: CfgNode, dataset: str) -> None:
    metadata = registered_metadata(dataset)
    kind = metadata.get("evaluator_type")
    if kind in (PANOPTIC, INSTANCES):
        task = "a panoptic" if kind == PANOPTIC else "an instance segmentation"
        raise UserError(
            f"{dataset} is {task} data set, but a semantic model predicts no things. For "
            'panoptic data, use a Panoptic-FPN config. Or name label PNGs under "semantic" in a '
            f"data file (datasets/README.md).{data_file_advice(dataset, metadata, ['semantic'])}"
        )
    count = semantic_class_count(dataset)
    complete_count(cfg, "SEM_SEG_HEAD", count, f"{dataset} has {count} classes")


TASKS["OCRSemanticSegmentor"] = Task(
    title="Semantic segmentation",
    mapper=lambda cfg, is_train: SemanticDatasetMapper(
        cfg, is_train, keep_labels=context_class(cfg).needs_truth
    ),
    complete_classes=_complete_semantic_classes,
    classes=lambda cfg: f"{cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES} classes",
    test_augmentation=lambda cfg: T.AugmentationList(
        build_semantic_augmentation(cfg, is_train=False)
    ),
    evaluator=build_evaluator,
)
