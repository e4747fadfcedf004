"""
Bootstrap confidence intervals: how much a metric varies with the choice of images.

Each of 1000 draws takes N images at random from the N evaluated images, with replacement. The
interval holds the middle 95% of the draws' values (the percentile interval of Efron and
Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13).

Shape letters: N images; B draws; K classes or categories.
"""

from collections.abc import Callable

import numpy as np

DRAWS = 1000
SEED = 0
SHARE = 0.95
_CHUNK = 100  # draws at a time, which bounds the memory


def bootstrap_interval(
    counts: np.ndarray, metric: Callable[[np.ndarray], np.ndarray]
) -> tuple[float, float]:
    """
    Return the lower and upper ends of a metric's 95% interval.

    Draws for which the metric is undefined are left out. Both ends are NaN if no draw remains.

    Args:
        counts: numbers that each image contributes to the metric, [N, ...].
        metric: function that computes the metric of each draw, [B], from the counts summed over
            the images of each draw, [B, ...]; NaN if undefined.
    """
    images = len(counts)
    if not images:
        return float("nan"), float("nan")
    rng = np.random.default_rng(SEED)
    flat = counts.reshape(images, -1).astype(np.float64)
    values = []
    for _ in range(0, DRAWS, _CHUNK):
        times = rng.multinomial(images, np.full(images, 1 / images), size=_CHUNK)
        values.append(metric((times @ flat).reshape(_CHUNK, *counts.shape[1:])))
    tail = (1 - SHARE) / 2
    values = np.concatenate(values)
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def mean_iou(counts: np.ndarray) -> np.ndarray:
    """
    Return mIoU in 0..1 over the classes that occur in the truth; NaN for fewer than two classes.

    Args:
        counts: numbers of correct, true and predicted pixels of each class, [..., K, 3].
    """
    right, true, predicted = np.moveaxis(counts, -1, 0)
    means = _mean_ratio(right, true + predicted - right, true > 0)
    return np.where((true > 0).sum(axis=-1) > 1, means, np.nan)


def mean_pq(counts: np.ndarray) -> np.ndarray:
    """
    Return PQ in 0..1, averaged over the categories with true or predicted segments.

    Args:
        counts: for each category, the sum of the IoUs of its matched segments, and its numbers of
            TP, FP and FN segments, [..., K, 4].
    """
    iou, tp, fp, fn = np.moveaxis(counts, -1, 0)
    denominator = tp + 0.5 * fp + 0.5 * fn
    return _mean_ratio(iou, denominator, denominator > 0)


def _mean_ratio(numerator: np.ndarray, denominator: np.ndarray, occurs: np.ndarray) -> np.ndarray:
    ratios = np.divide(
        numerator, denominator, out=np.zeros(numerator.shape), where=occurs & (denominator > 0)
    )
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
        return ratios.sum(axis=-1) / occurs.sum(axis=-1)
