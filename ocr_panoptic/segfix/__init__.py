"""
SegFix: predicts, for a pixel near a boundary, the step to the inside of its region.

The package has the network, its truth, its evaluator, and the refinement of other predictions.
"""

# Importing the network registers it with Detectron2.
from .evaluator import OffsetEvaluator
from .head import SegFixHead
from .network import SegFix
from .refinement import RefinedModel
