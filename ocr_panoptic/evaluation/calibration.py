"""
Calibration: how well the confidence of predictions agrees with their accuracy.

Expected calibration error (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017,
arXiv:1706.04599, equation 3): the n pixels are sorted into M = 15 bins. Bin B_m holds the pixels
whose confidence lies in ((m - 1) / M, m / M], and

    ECE = sum_m |B_m| / n * |accuracy(B_m) - mean confidence(B_m)|.

Pixels without a true class are left out.
"""

import numpy as np

from .runs import runs_of

NUM_BINS = 15


def count_calibration(
    truth: np.ndarray, prediction: np.ndarray, confidence: np.ndarray, ignore_label: int
) -> np.ndarray:
    """
    Count the pixels and correct pixels in each confidence bin, and sum the bin's confidences.

    Args:
        truth, prediction: labels, integers [H, W].
        confidence: probability of the predicted label, float [H, W] in 0..1.
        ignore_label: true label of the pixels to leave out.

    Returns:
        for each bin, the number of pixels, the sum of their confidences, and the number of correct
        pixels, float64 [15, 3]
    """
    bins = np.ceil(NUM_BINS * confidence).astype(np.uint8)  # from 1; bin 0 is for ignored pixels
    bins.clip(1, NUM_BINS, out=bins)
    bins *= truth != ignore_label
    key = (2 * bins + (truth == prediction)).reshape(-1)
    size = 2 * (NUM_BINS + 1)
    (key_of_run,), length = runs_of(key)
    pixels = np.bincount(key_of_run, weights=length, minlength=size).reshape(-1, 2)[1:]
    sums = np.bincount(key, weights=confidence.reshape(-1), minlength=size).reshape(-1, 2)[1:]
    return np.stack([pixels.sum(1), sums.sum(1), pixels[:, 1]], axis=1)


def expected_calibration_error(counts: np.ndarray) -> float:
    """
    Return the expected calibration error in 0..1; NaN if no pixels were counted.

    Args:
        counts: results of :func:`count_calibration`, summed over the images, float64 [15, 3].
    """
    pixels, confidences, right = counts.T
    total = pixels.sum()
    return float(np.abs(right - confidences).sum() / total) if total else float("nan")
