"""Data sets: check, preparation, registration with Detectron2, and loading."""

from .camvid import prepare_camvid
from .coco import prepare_coco_panoptic
from .faults import DataFaults
from .histogram import class_histogram, log_class_histogram
from .mapper import PanopticDatasetMapper
from .mat_labels import COCO_STUFF_10K, PASCAL_CONTEXT, prepare_mat_release
from .prepare import RawSplit, datasets_root, prepare_panoptic
from .register import class_counts, register_prepared, semantic_class_count
from .semantic_augmentation import build_semantic_augmentation
from .semantic_datasets import register_semantic_datasets
from .semantic_manifest import SemanticSplit
from .semantic_mapper import SemanticDatasetMapper
from .semantic_prepare import prepare_semantic

__all__ = [
    "COCO_STUFF_10K",
    "PASCAL_CONTEXT",
    "DataFaults",
    "PanopticDatasetMapper",
    "RawSplit",
    "SemanticDatasetMapper",
    "SemanticSplit",
    "build_semantic_augmentation",
    "class_counts",
    "class_histogram",
    "datasets_root",
    "log_class_histogram",
    "prepare_camvid",
    "prepare_coco_panoptic",
    "prepare_mat_release",
    "prepare_panoptic",
    "prepare_semantic",
    "register_prepared",
    "register_semantic_datasets",
    "semantic_class_count",
]
