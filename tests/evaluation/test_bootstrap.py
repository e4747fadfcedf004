"""Bootstrap intervals, compared with a plain resampling of images."""

import numpy as np
import pytest

from ocr_panoptic.evaluation.bootstrap import bootstrap_interval, mean_iou, mean_pq
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
