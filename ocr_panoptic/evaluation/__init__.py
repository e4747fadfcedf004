from .build import build_evaluator
from .confusion import confusion_matrix, semantic_metrics
from .panoptic_evaluator import PanopticEvaluator
from .panoptic_quality import PanopticQuality, match_segments
from .report import per_class_rows, write_results
from .sem_seg_evaluator import SemSegEvaluator

__all__ = [
    "PanopticEvaluator",
    "PanopticQuality",
    "SemSegEvaluator",
    "build_evaluator",
    "confusion_matrix",
    "match_segments",
    "per_class_rows",
    "semantic_metrics",
    "write_results",
]
