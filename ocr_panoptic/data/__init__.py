"""Data sets: files that describe them, check, registration with Detectron2, and loading."""

from ocr_panoptic.engine.offset_mapper import OffsetDatasetMapper

from .annotations.formats import FORMATS as ANNOTATION_FORMATS
from .annotations.importing import Plan as ImportPlan
from .annotations.importing import Source as AnnotationSource
from .annotations.importing import import_annotations
from .annotations.kinds import read_kinds
from .annotations.painting import OVERLAPS
from .data_check import DataSummary, check, check_data_sets
from .data_file import (
    PanopticSplit,
    SemanticSplit,
    check_name,
    data_options,
    datasets_root,
    names_below_root,
    write_data_file,
)
from .faults import DataFaults, faults_listed
from .histogram import log_class_histogram
from .index import cache_folder
from .panoptic.mapper import PanopticDatasetMapper
from .published.camvid import prepare_camvid
from .published.mat_labels import MAT_RELEASES, prepare_mat_release
from .published.register import register_published
from .register import check_files, class_counts, not_registered, semantic_class_count
from .registration import check_same_classes, register_data_files, register_in_use
from .semantic.augmentation import build_semantic_augmentation
from .semantic.label_space import read_class_file
from .semantic.mapper import SemanticDatasetMapper
from .training_records import IndexedRecords, indexed_records
from .training_stream import (
    TrainingStream,
    build_training_stream,
    leave_signals_to_the_trainer,
    run_seed,
)

__all__ = [
    "ANNOTATION_FORMATS",
    "MAT_RELEASES",
    "OVERLAPS",
    "AnnotationSource",
    "DataFaults",
    "DataSummary",
    "ImportPlan",
    "IndexedRecords",
    "OffsetDatasetMapper",
    "PanopticDatasetMapper",
    "PanopticSplit",
    "SemanticDatasetMapper",
    "SemanticSplit",
    "TrainingStream",
    "build_semantic_augmentation",
    "build_training_stream",
    "cache_folder",
    "check",
    "check_data_sets",
    "check_files",
    "check_same_classes",
    "check_name",
    "class_counts",
    "data_options",
    "datasets_root",
    "faults_listed",
    "import_annotations",
    "indexed_records",
    "leave_signals_to_the_trainer",
    "log_class_histogram",
    "names_below_root",
    "not_registered",
    "prepare_camvid",
    "prepare_mat_release",
    "read_class_file",
    "read_kinds",
    "register_data_files",
    "register_in_use",
    "register_published",
    "run_seed",
    "semantic_class_count",
    "write_data_file",
]
