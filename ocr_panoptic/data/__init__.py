"""
Data sets: files that describe them, check, registration with Detectron2, and loading.

A name is imported when it is used first: the check of data, and import from other formats, start
without PyTorch.
"""

import importlib
from typing import Any

_MODULES = {
    "annotations.formats": ("ANNOTATION_FORMATS",),
    "annotations.import_plan": ("AnnotationSource", "ImportPlan"),
    "annotations.importing": ("import_annotations",),
    "annotations.kinds": ("read_kinds",),
    "annotations.painting": ("OVERLAPS",),
    "data_check": ("DataSummary", "check_data", "check_data_sets"),
    "data_file": (
        "PanopticSplit",
        "SemanticSplit",
        "check_name",
        "data_options",
        "datasets_root",
        "names_below_root",
        "write_data_file",
    ),
    "faults": ("DataFaults", "faults_listed"),
    "histogram": ("log_class_histogram",),
    "index": ("cache_folder",),
    "panoptic.mapper": ("PanopticDatasetMapper",),
    "published.camvid": ("prepare_camvid",),
    "published.mat_labels": ("MAT_RELEASES", "prepare_mat_release"),
    "published.register": ("register_published",),
    "register": (
        "check_files",
        "check_same_classes",
        "class_counts",
        "not_registered",
        "register_data_files",
        "register_in_use",
        "semantic_class_count",
    ),
    "semantic.augmentation": ("build_semantic_augmentation",),
    "semantic.label_space": ("read_class_file",),
    "semantic.mapper": ("SemanticDatasetMapper",),
    "training_stream": (
        "IndexedRecords",
        "TrainingStream",
        "build_training_stream",
        "indexed_records",
        "leave_signals_to_the_trainer",
        "run_seed",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
