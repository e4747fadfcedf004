"""The expected calibration error, compared with bins filled pixel by pixel."""

import numpy as np
import pytest

from ocr_panoptic.evaluation.calibration import count_calibration, expected_calibration_error

IGNORED = 255


def test_bins_hold_their_upper_ends():
    ends = np.arange(16) / 15  # the lowest bin also holds 0
    counts = count_calibration(
        np.zeros((1, 16), dtype=np.uint8), np.zeros((1, 16), dtype=int), ends[None], IGNORED
    )
    assert counts[:, 0].tolist() == [2] + [1] * 14


def test_pixel_by_pixel():
    rng = np.random.default_rng(0)
    truth = rng.choice([0, 1, 2, IGNORED], (2, 30, 40)).astype(np.uint8)
    prediction = rng.integers(0, 3, truth.shape)
    confidence = rng.random(truth.shape).astype(np.float32)
    counts = sum(count_calibration(*image, IGNORED) for image in zip(truth, prediction, confidence))
    error, total = 0.0, (truth != IGNORED).sum()
    for low in range(15):
        pixels = (truth != IGNORED) & (confidence > low / 15) & (confidence <= (low + 1) / 15)
        gap = (truth == prediction)[pixels].mean() - confidence[pixels].mean(dtype=np.float64)
        error += pixels.sum() / total * abs(gap)
    assert expected_calibration_error(counts) == pytest.approx(error, rel=1e-9)


def test_no_pixels():
    assert np.isnan(expected_calibration_error(np.zeros((15, 3))))
