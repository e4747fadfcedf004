"""
How well a model counts objects.

The true objects of a class in an image are its TP and FN segments, and the predicted objects its TP
and FP segments (:mod:`.segment_matching`). So the count is FP - FN too high, however the segments
are matched. Crowds are not objects, and predictions in void or crowds do not count, as in PQ.

Shape letters: N images; C categories.
"""

import numpy as np


def count_errors(counts: np.ndarray) -> dict[str, np.ndarray]:
    """
    Return means over the images for each category, float64 [C]; NaN for a category without objects.

    The keys are "objects", the number of true objects in an image; "count_error", the absolute
    difference between the predicted and the true number; and "count_bias", the predicted minus the
    true number.

    Args:
        counts: sum of IoUs, TP, FP and FN of each category in each image, [N, C, 4].
    """
    tp, fp, fn = np.moveaxis(counts[..., 1:], -1, 0)
    parts = {"objects": tp + fn, "count_error": np.abs(fp - fn), "count_bias": fp - fn}
    images = np.where((tp + fp + fn).any(axis=0), float(len(counts)), np.nan)
    return {name: part.sum(axis=0) / images for name, part in parts.items()}
