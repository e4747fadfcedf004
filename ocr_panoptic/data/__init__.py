"""Data sets: check, preparation, registration with Detectron2, and loading."""

from .coco import prepare_coco_panoptic
from .faults import DataFaults
from .mapper import PanopticDatasetMapper
from .prepare import RawSplit, datasets_root, prepare_panoptic
from .register import class_counts, register_prepared, semantic_class_count
from .semantic_augmentation import build_semantic_augmentation
from .semantic_manifest import SemanticSplit
from .semantic_mapper import SemanticDatasetMapper
from .semantic_prepare import prepare_semantic

__all__ = [
    "DataFaults",
    "PanopticDatasetMapper",
    "RawSplit",
    "SemanticDatasetMapper",
    "SemanticSplit",
    "build_semantic_augmentation",
    "class_counts",
    "datasets_root",
    "prepare_coco_panoptic",
    "prepare_panoptic",
    "prepare_semantic",
    "register_prepared",
    "semantic_class_count",
]
