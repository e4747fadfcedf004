"""Bootstrap intervals and calibration, compared with resampled images and with single pixels."""

import numpy as np
import pytest

from ocr_panoptic.evaluation.bootstrap import bootstrap_interval, mean_iou, mean_pq
from ocr_panoptic.evaluation.calibration import count_calibration, expected_calibration_error
from ocr_panoptic.evaluation.confusion import semantic_scores
from ocr_panoptic.evaluation.panoptic_quality import PanopticQuality
from ocr_panoptic.evaluation.sem_seg_evaluator import counts_of_classes


def test_metrics_equal_the_evaluators():
    rng = np.random.default_rng(0)
    confusion = rng.integers(0, 50, (6, 6)) * (rng.random((6, 6)) < 0.6)
    confusion[4] = 0  # a class that is only predicted
    confusion[5] = confusion[:, 5] = 0
    expected = semantic_scores(confusion, "abcdef")["mIoU"] / 100
    assert mean_iou(counts_of_classes(confusion)) == pytest.approx(expected, rel=1e-12)

    quality = PanopticQuality([{"id": i, "isthing": i % 2} for i in range(4)])
    quality.counts[:3] = rng.integers(1, 9, (3, 3))
    quality.counts[2, 0] = 0
    quality.iou[:2] = quality.counts[:2, 0] * rng.uniform(0.5, 1, 2)
    expected = quality.averages()["PQ"]
    assert mean_pq(quality.statistics()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_interval_of_a_resampling_image_by_image():
    rng = np.random.default_rng(1)
    matrices = rng.integers(0, 9, (15, 3, 3)) + np.diag([8, 4, 2]) * rng.integers(0, 9, (15, 1, 1))
    found = bootstrap_interval(np.stack([counts_of_classes(m) for m in matrices]), mean_iou)
    values = []
    for _ in range(2000):
        drawn = sum(matrices[i] for i in rng.integers(0, 15, 15))
        values.append(semantic_scores(drawn, "abc")["mIoU"] / 100)
    expected = np.quantile(values, [0.025, 0.975])
    assert found == pytest.approx(expected, abs=0.01)
    assert expected[1] - expected[0] > 0.05  # otherwise the tolerance would prove nothing
    assert found == bootstrap_interval(  # the draws are seeded
        np.stack([counts_of_classes(m) for m in matrices]), mean_iou
    )


def test_equal_images_give_an_empty_interval_and_no_image_gives_nan():
    counts = np.tile([[3, 4, 5], [2, 3, 2]], (7, 1, 1))
    low, high = bootstrap_interval(counts, mean_iou)
    assert low == pytest.approx(high) == pytest.approx((3 / 6 + 2 / 3) / 2)
    for images in (0, 3):
        assert np.isnan(bootstrap_interval(np.zeros((images, 2, 3)), mean_iou)).all()


IGNORED = 255


def test_bins_of_confidence_hold_their_upper_ends():
    ends = np.arange(16) / 15  # the lowest bin also holds 0
    counts = count_calibration(
        np.zeros((1, 16), dtype=np.uint8), np.zeros((1, 16), dtype=int), ends[None], IGNORED
    )
    assert counts[:, 0].tolist() == [2] + [1] * 14


def test_calibration_pixel_by_pixel():
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
    assert np.isnan(expected_calibration_error(np.zeros((15, 3))))
