"""Data sets: check, preparation, registration with Detectron2, and loading."""

from .coco import prepare_coco_panoptic
from .faults import DataFaults
from .mapper import PanopticDatasetMapper
from .prepare import RawSplit, datasets_root, prepare_panoptic
from .register import class_counts, register_prepared

__all__ = [
    "DataFaults",
    "PanopticDatasetMapper",
    "RawSplit",
    "class_counts",
    "datasets_root",
    "prepare_coco_panoptic",
    "prepare_panoptic",
    "register_prepared",
]
