"""Losses of an image: the kinds add up to the distance from a perfect score."""

import numpy as np
import pytest

from ocr_panoptic.evaluation.boundaries import near_other_labels
from ocr_panoptic.evaluation.confusion import confusion_matrix, semantic_scores
from ocr_panoptic.evaluation.image_scores import panoptic_losses, semantic_losses
from ocr_panoptic.evaluation.panoptic_quality import PanopticQuality
from support.panoptic_samples import make_categories, overlaps_of, random_samples

IGNORED = 255


def test_panoptic_kinds_by_hand():
    # Category 0 has a match of IoU 0.75, a miss and a false positive. A segment of category 1 is
    # found, but predicted as category 2.
    counts = np.array([[0.75, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]])
    confused = np.array([[0, 0], [0, 1], [1, 0], [0, 0]])
    losses = panoptic_losses(counts, confused)
    assert np.isnan([*panoptic_losses(0 * counts, confused).values()]).all()
    thirds = {"masks": 0.25 / 2, "confusions": 2, "false positives": 0.5 / 2, "misses": 0.5 / 2}
    assert losses == pytest.approx({kind: 100 * value / 3 for kind, value in thirds.items()})


def test_panoptic_kinds_add_up():
    categories = make_categories(3, 2)
    found = []
    for sample in random_samples(np.random.default_rng(0), 60, categories):
        quality, matches = PanopticQuality(categories), overlaps_of(sample).matches()
        quality.add(matches)
        if not quality.counts.any():
            continue
        losses = panoptic_losses(quality.statistics(), quality.confused(matches))
        assert min(losses.values()) >= 0
        expected = 100 - 100 * quality.averages()["PQ"]
        assert sum(losses.values()) == pytest.approx(expected, abs=1e-9)
        found.append(list(losses.values()))
    assert (np.array(found) > 0).any(axis=0).all()  # every kind occurs


def test_semantic_kinds_by_hand():
    """Truth 0 0 1 1 2 3 and prediction 0 1 0 4 0 2, each number a pixel."""
    confusion = np.zeros((5, 5), dtype=np.int64)
    for true, predicted in ((0, 0), (0, 1), (1, 0), (1, 4), (2, 0), (3, 2)):
        confusion[true, predicted] += 1
    losses = semantic_losses(confusion, np.zeros_like(confusion))
    assert np.isnan([*semantic_losses(0 * confusion, 0 * confusion).values()]).all()
    # Unions: class 0 has 4 pixels, 1 has 3, 2 has 2, 3 has 1. Only a pixel of class 0 is right.
    cost = {(0, 1): 1 / 4 + 1 / 3, (1, 0): 1 / 3 + 1 / 4, (1, 4): 1 / 3}
    cost |= {(2, 0): 1 / 2 + 1 / 4, (3, 2): 1 + 1 / 2}
    expected = {
        "boundaries": 0,
        # 0 is found elsewhere and the truth has 1; no pixel of 1 is right, and the truth lacks 4.
        "confusions": cost[0, 1] + cost[1, 4],
        "false positives": 0,
        "misses": cost[1, 0] + cost[2, 0] + cost[3, 2],
    }
    assert losses == pytest.approx({kind: 100 * value / 4 for kind, value in expected.items()})
    confusion[1, 1] += 1
    losses = semantic_losses(
        confusion, np.eye(5, dtype=np.int64)[[4, 4, 0, 4, 4]] * [1, 0, 0, 0, 0]
    )
    assert losses["boundaries"] == pytest.approx(100 * (1 / 2 + 1 / 4) / 4)
    assert losses["false positives"] == pytest.approx(100 * (1 / 4) / 4)  # (1, 4); 1 is found


def test_semantic_kinds_add_up():
    rng = np.random.default_rng(1)
    found = []
    for _ in range(60):
        truth = rng.choice(5, p=[0.5, 0.2, 0.1, 0.1, 0.1], size=(4, 3)).astype(np.uint8)
        truth = truth.repeat(8, axis=0).repeat(9, axis=1)
        prediction = np.roll(truth, rng.integers(-3, 4), axis=1)
        for label in rng.choice(5, 2):
            prediction[prediction == label] = rng.choice(5)
        truth[rng.random(truth.shape) < 0.1] = IGNORED
        confusion = confusion_matrix(truth, prediction, 5, IGNORED)
        near = near_other_labels(truth, [2])[2] & near_other_labels(prediction, [2])[2]
        near &= truth != prediction
        errors = confusion_matrix(truth[near], prediction[near], 5, IGNORED)
        losses = semantic_losses(confusion, errors)
        assert min(losses.values()) >= 0
        expected = 100 - semantic_scores(confusion, "abcde")["mIoU"]
        assert sum(losses.values()) == pytest.approx(expected, abs=1e-9)
        found.append(list(losses.values()))
    assert (np.array(found) > 0).any(axis=0).all()  # every kind occurs
