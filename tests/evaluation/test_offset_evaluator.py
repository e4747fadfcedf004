"""Metrics of offsets, compared with separately counted pixels."""

import numpy as np
import pytest
import torch

from ocr_panoptic.formats.offsets import IGNORED, offset_labels
from ocr_panoptic.segfix.evaluator import OffsetEvaluator


def test_counts_over_several_images():
    rng = np.random.default_rng(0)
    evaluator, counts = OffsetEvaluator("town_val"), np.zeros(5)
    for _ in range(3):
        near, direction = rng.random((6, 7)) < 0.4, rng.integers(0, 9, (6, 7))
        truth = offset_labels(near, direction).astype(np.int64)
        truth[rng.random((6, 7)) < 0.2] = IGNORED
        found, to = rng.random((6, 7)) < 0.5, rng.integers(0, 8, (6, 7))
        known = truth != IGNORED
        pointed = known & near & (direction < 8)
        parts = known & near & found, known & found, known & near, pointed & (direction == to)
        counts += [part.sum() for part in (*parts, pointed)]
        evaluator.process(
            [{"file_name": "a.png", "sem_seg": torch.as_tensor(truth)}],
            [{"near_boundary": torch.as_tensor(found), "direction": torch.as_tensor(to)}],
        )
    both, predicted, true, right, pointed = counts
    precision, recall = both / predicted, both / true
    expected = {
        "F1": 200 * precision * recall / (precision + recall),
        "precision": 100 * precision,
        "recall": 100 * recall,
        "direction_ACC": 100 * right / pointed,
    }
    assert evaluator.evaluate()["offsets"] == pytest.approx(expected)
    evaluator.reset()
    assert all(np.isnan(value) for value in evaluator.evaluate()["offsets"].values())


def test_an_image_without_labels_is_named():
    with pytest.raises(ValueError, match="b.png: the image has no labels"):
        OffsetEvaluator("town_val").process([{"file_name": "b.png"}], [{}])
