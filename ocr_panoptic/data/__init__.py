"""Data sets: check, preparation, registration with Detectron2, and loading."""

from .annotations.formats import FORMATS as ANNOTATION_FORMATS
from .annotations.importing import Plan as ImportPlan
from .annotations.importing import Source as AnnotationSource
from .annotations.importing import import_annotations
from .annotations.kinds import read_kinds
from .annotations.painting import OVERLAPS
from .faults import DataFaults, faults_listed
from .histogram import class_histogram, log_class_histogram
from .manifest import check_name, datasets_root, warn_if_unseen
from .offset_mapper import OffsetDatasetMapper
from .packed import PackedRecords, packed_records
from .panoptic.manifest import RawSplit
from .panoptic.mapper import PanopticDatasetMapper
from .panoptic.prepare import prepare_panoptic
from .panoptic.records import class_counts
from .prepared import register_prepared
from .published.camvid import prepare_camvid
from .published.coco import prepare_coco_panoptic
from .published.mat_labels import MAT_RELEASES, prepare_mat_release
from .published.panoptic import PANOPTIC_RELEASES, prepare_panoptic_release
from .published.server_splits import register_server_splits
from .published.splits import register_semantic_datasets
from .register import check_files
from .semantic.augmentation import build_semantic_augmentation
from .semantic.feature_cache import (
    CachedFeatureMapper,
    FeatureCache,
    cache_path,
    check_cacheable,
    write_feature_cache,
)
from .semantic.label_space import read_class_file
from .semantic.manifest import SemanticSplit
from .semantic.mapper import SemanticDatasetMapper
from .semantic.prepare import prepare_semantic
from .semantic.records import semantic_class_count
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
    "PANOPTIC_RELEASES",
    "AnnotationSource",
    "CachedFeatureMapper",
    "DataFaults",
    "FeatureCache",
    "ImportPlan",
    "OffsetDatasetMapper",
    "PackedRecords",
    "PanopticDatasetMapper",
    "RawSplit",
    "SemanticDatasetMapper",
    "SemanticSplit",
    "TrainingStream",
    "build_semantic_augmentation",
    "build_training_stream",
    "cache_path",
    "check_cacheable",
    "check_files",
    "check_name",
    "class_counts",
    "class_histogram",
    "datasets_root",
    "faults_listed",
    "import_annotations",
    "leave_signals_to_the_trainer",
    "log_class_histogram",
    "packed_records",
    "prepare_camvid",
    "prepare_coco_panoptic",
    "prepare_mat_release",
    "prepare_panoptic",
    "prepare_panoptic_release",
    "prepare_semantic",
    "read_class_file",
    "read_kinds",
    "register_prepared",
    "register_semantic_datasets",
    "register_server_splits",
    "run_seed",
    "semantic_class_count",
    "warn_if_unseen",
    "write_feature_cache",
]
