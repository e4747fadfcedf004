from .build import build_evaluator
from .confusion import category_scores, confusion_matrix, semantic_scores
from .confusion_files import write_confusion
from .instance_evaluator import InstanceEvaluator
from .panoptic_evaluator import PanopticEvaluator
from .panoptic_quality import PanopticQuality
from .region_quality import RegionQuality
from .segment_matching import SegmentOverlaps
from .sem_seg_evaluator import SemSegEvaluator
from .sem_seg_predictions import SemSegDump

__all__ = [
    "InstanceEvaluator",
    "PanopticEvaluator",
    "PanopticQuality",
    "RegionQuality",
    "SegmentOverlaps",
    "SemSegDump",
    "SemSegEvaluator",
    "build_evaluator",
    "category_scores",
    "confusion_matrix",
    "semantic_scores",
    "write_confusion",
]
