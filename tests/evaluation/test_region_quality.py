"""The measure of soft object regions: hand-worked images, and pixels counted one by one."""

import numpy as np
import pytest

from ocr_panoptic.evaluation.region_quality import RegionQuality


def edges(*lists: list[float]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(values, float) for values in lists)


def test_by_hand():
    """4x4 pixels in 2x2 cells: a is the left half, b the third column; the last one is ignored."""
    truth = np.tile(np.array([0, 0, 1, 255], np.uint8), (4, 1))
    refined = np.where(truth == 0, 0, 1)
    coarse = np.zeros_like(refined)
    regions = np.array([[[0.5, 0.2], [0.1, 0.2]], [[0.2, 0.3], [0.1, 0.4]], [[1, 0], [0, 0]]])
    relation = np.array([[[0.7, 0.2], [0.5, 0.4]], [[0.3, 0.8], [0.5, 0.5]], [[0, 0], [0, 0.1]]])
    quality = RegionQuality(["a", "b", "c"], ignore_label=255)
    cells = edges([0, 2, 4], [0, 2, 4])
    quality.process(truth, coarse, refined, regions, relation, cells)
    rows = quality.results()
    # Half of the weight in the right cells is on ignored pixels, and does not count.
    assert rows["a"] == pytest.approx(
        {
            "IoU coarse": 100 * 8 / 12,
            "IoU refined": 100,
            "own weight": 100 * 0.6 / (0.6 + 0.4 / 2),
            "uniform": 100 * 8 / 12,
            "attainable": 100,
            "own relation": 60,
        }
    )
    assert rows["b"] == pytest.approx(
        {
            "IoU coarse": 0,
            "IoU refined": 100,
            "own weight": 100 * (0.7 / 2) / (0.7 / 2 + 0.3),
            "uniform": 100 * 4 / 12,
            "attainable": 100,
            "own relation": 65,
        }
    )
    assert np.isnan(list(rows["c"].values())).all()
    assert rows["(mean)"]["own relation"] == pytest.approx((60 + 65) / 2)

    # An image with twice as many pixels of a: they count as such. b fills a quarter of one cell.
    large = np.zeros((4, 4), np.uint8)
    large[3, 3] = 1
    half = np.full((3, 2, 2), 0.25)
    quality.process(large, large.astype(int), large.astype(int), half, half, cells)
    rows = quality.results()
    assert rows["a"]["own weight"] == pytest.approx((8 * 75 + 15 * 100 * 15 / 16) / 23)
    assert rows["a"]["own relation"] == pytest.approx((8 * 60 + 15 * 25) / 23)
    assert rows["b"]["attainable"] == pytest.approx((4 * 100 + 1 * 25) / 5)


def test_cells_that_divide_no_pixels():
    """Against a picture so fine that cells and pixels are whole numbers of its points."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, (5, 7)).astype(np.uint8)
    truth[1, 2] = 255
    regions, relation = rng.random((2, 3, 2, 3))
    quality = RegionQuality(["a", "b", "c"], 255)
    labels = np.where(truth == 255, 0, truth)
    quality.process(truth, labels, labels, regions, relation, edges([0, 3.5, 5], [0, 3, 6, 7]))
    rows = quality.results()

    fine = truth.repeat(2, 0).repeat(2, 1)
    cell = np.zeros((10, 14), int)
    cell[:7] = np.repeat([0, 1, 2], [6, 6, 2])
    cell[7:] = np.repeat([3, 4, 5], [6, 6, 2])
    weight = np.array([1 / np.sum(cell == i) for i in range(6)])
    for label, name in enumerate("abc"):
        a = regions[label].ravel()[cell] * weight[cell]
        w = relation[label].ravel()[cell]
        own, known = fine == label, fine != 255
        shares = [np.sum(own & (cell == i)) / np.sum(known & (cell == i)) for i in range(6)]
        expected = {
            "IoU coarse": 100,
            "IoU refined": 100,
            "own weight": 100 * a[own].sum() / a[known].sum(),
            "uniform": 100 * own.sum() / known.sum(),
            "attainable": 100 * max(shares),
            "own relation": 100 * w[own].mean(),
        }
        assert rows[name] == pytest.approx(expected)


def test_a_region_on_ignored_pixels_alone():
    truth = np.array([[0, 255]], np.uint8)
    regions = np.array([[[0.0, 1.0]]])
    quality = RegionQuality(["a"], 255)
    labels = np.zeros((1, 2), int)
    quality.process(truth, labels, labels, regions, np.ones((1, 1, 2)), edges([0, 1], [0, 1, 2]))
    assert quality.results()["a"]["own weight"] == 0
