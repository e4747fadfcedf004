"""
SegFix predicts, for each pixel near a boundary, a step into the region that the pixel belongs to.

The package has the network, its ground truth and its evaluator, and a model that refines another
model's predictions.
"""

# Importing the network registers it with Detectron2.
from .evaluator import OffsetEvaluator
from .head import SegFixHead
from .network import SegFix
from .refinement import RefinedModel
