"""The measure of soft object regions, on a hand-worked image and on perfect ones."""

import numpy as np
import pytest

from ocr_panoptic.evaluation import RegionQuality


def test_by_hand():
    """4x4 pixels in 2x2 cells: a is the left half, b the right one but for an ignored column."""
    truth = np.tile(np.array([0, 0, 1, 255], np.uint8), (4, 1))
    refined = np.where(truth == 0, 0, 1)
    coarse = np.zeros_like(refined)
    regions = np.array([[[0.5, 0.1], [0.3, 0.1]], [[0.2, 0.3], [0.1, 0.4]], [[1, 0], [0, 0]]])
    relation = np.array([[[0.7, 0.2], [0.5, 0.4]], [[0.3, 0.8], [0.5, 0.5]], [[0, 0], [0, 0.1]]])
    quality = RegionQuality(["a", "b", "c"], ignore_label=255)
    quality.process(truth, coarse, refined, regions, relation)
    rows = quality.results()
    # Class a covers the two left cells, b half of each right one; c is nowhere.
    assert rows["a"] == pytest.approx(
        {
            "IoU coarse": 100 * 8 / 12,
            "IoU refined": 100,
            "own weight": 80,
            "chance": 50,
            "own relation": 60,
        }
    )
    assert rows["b"] == pytest.approx(
        {
            "IoU coarse": 0,
            "IoU refined": 100,
            "own weight": 35,
            "chance": 25,
            "own relation": 65,
        }
    )
    assert np.isnan(list(rows["c"].values())).all()
    assert rows["mean"]["own weight"] == pytest.approx((80 + 35) / 2)

    # An image of class a alone: weights and chances are means over images, relations over pixels.
    all_a = np.zeros((4, 4), np.uint8)
    half = np.full((3, 2, 2), 0.25)
    quality.process(all_a, all_a.astype(int), all_a.astype(int), half, half)
    rows = quality.results()
    assert rows["a"]["own weight"] == pytest.approx((80 + 100) / 2)
    assert rows["a"]["chance"] == pytest.approx((50 + 100) / 2)
    assert rows["a"]["own relation"] == pytest.approx(100 * (2 * 0.6 + 4 * 0.25) / 6)
    assert rows["b"]["own weight"] == pytest.approx(35)


def test_regions_of_the_truth_are_perfect_and_uniform_ones_are_chance():
    truth = np.random.default_rng(0).integers(0, 3, (6, 8)).astype(np.uint8)
    one_hot = np.stack([truth == k for k in range(3)]).astype(float)
    quality, uniform = (RegionQuality(["a", "b", "c"], 255) for _ in range(2))
    regions = one_hot / one_hot.sum((1, 2), keepdims=True)
    quality.process(truth, truth, truth, regions, one_hot)
    uniform.process(truth, truth, truth, np.full((3, 6, 8), 1 / 48), np.full((3, 6, 8), 1 / 3))
    for row in quality.results().values():
        assert [row[c] for c in ("IoU coarse", "IoU refined", "own weight", "own relation")] == (
            pytest.approx([100] * 4)
        )
    for name, row in uniform.results().items():
        assert row["own weight"] == pytest.approx(row["chance"]), name
        assert row["own relation"] == pytest.approx(100 / 3)


def test_shapes_that_do_not_fit():
    labels = np.zeros((4, 4), np.uint8)
    quality = RegionQuality(["a", "b"], 255)
    with pytest.raises(ValueError, match=r"\[3, 2, 2\] and the relation \[2, 2, 2\]"):
        quality.process(labels, labels, labels, np.ones((3, 2, 2)), np.ones((2, 2, 2)))
