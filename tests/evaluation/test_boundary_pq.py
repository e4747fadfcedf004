"""Boundary PQ, compared with masks that are eroded and compared in pairs, as published."""

from collections import Counter

import numpy as np
import pytest

from ocr_panoptic.evaluation.boundaries import boundary_distance
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.segment_matching import SegmentOverlaps
from support import panoptic_samples as samples_of

SIZE = (70, 119)  # for which the distance is 3


def iou(true: np.ndarray, predicted: np.ndarray, void: np.ndarray) -> float:
    return (true & predicted).sum() / max(1, (true | (predicted & ~void)).sum())


def reference(sample, quality: dict[int, Counter]) -> None:
    """Add "iou", "tp", "fp" and "fn" of each category."""
    void, matched = sample.ids == 0, set()
    predicted = {s["id"]: sample.predicted_ids == s["id"] for s in sample.predicted_segments}
    regions = {id_: mask & ~samples_of.eroded(mask, 3) for id_, mask in predicted.items()}
    crowds = {s["category_id"]: s["id"] for s in sample.segments if s["iscrowd"]}
    for segment in (s for s in sample.segments if not s["iscrowd"]):
        mask, category = sample.ids == segment["id"], segment["category_id"]
        region = mask & ~samples_of.eroded(mask, 3)
        smaller = {
            s["id"]: min(iou(mask, predicted[s["id"]], void), iou(region, regions[s["id"]], void))
            for s in sample.predicted_segments
            if s["category_id"] == category
        }
        found = {id_: value for id_, value in smaller.items() if value > 0.5}
        quality[category] += Counter(tp=1, iou=sum(found.values())) if found else Counter(fn=1)
        matched |= found.keys()
    for other in sample.predicted_segments:
        mask = predicted[other["id"]]
        forgiven = void | (sample.ids == crowds.get(other["category_id"], 0))
        if other["id"] not in matched and (mask & forgiven).sum() / mask.sum() <= 0.5:
            quality[other["category_id"]] += Counter(fp=1)


def test_a_ring_does_not_match_a_disc():
    """The boundary regions are equal here, but the masks' IoU also counts."""
    ids = np.zeros((60, 60), np.int32)
    ids[5:55, 5:55] = 1
    ring, segments = ids.copy(), [{"id": 1, "category_id": 1}]
    ring[7:53, 7:53] = 0
    assert boundary_distance(ids.shape) == 2
    assert SegmentOverlaps(ids, segments, ring, segments).boundary_matches().false_negatives == [1]


def test_equals_the_definition(tmp_path, clean_catalog):
    """The evaluator reports it for all, things, stuff and each class."""
    assert boundary_distance(SIZE) == 3
    rng, name, categories = np.random.default_rng(3), "samples", samples_of.make_categories(3, 2)
    samples = samples_of.random_samples(rng, 30, categories, SIZE)
    samples_of.register(name, tmp_path, categories, samples)
    evaluator = PanopticEvaluator(name)
    evaluator.process(*samples_of.inputs_and_outputs(name, categories, samples, rng))
    metrics, quality = evaluator.evaluate()["panoptic_seg"], evaluator.boundary_quality
    theirs = {category["id"]: Counter() for category in categories}
    for sample in samples:
        reference(sample, theirs)
    expected = [[found[key] for key in ("iou", "tp", "fp", "fn")] for found in theirs.values()]
    np.testing.assert_allclose(quality.statistics(), expected, rtol=1e-12)
    # The measure differs from PQ: some segments match only by their masks.
    assert 20 < quality.counts[:, 0].sum() < evaluator.quality.counts[:, 0].sum()
    reported = {f"BoundaryPQ{s}": 100 * quality.averages()[f"PQ{s}"] for s in ("", "_th", "_st")}
    for category, value in zip(categories, quality.per_class()["PQ"], strict=True):
        reported[f"BoundaryPQ-{category['name']}"] = 100 * value
    assert {key: metrics[key] for key in reported} == pytest.approx(reported, rel=1e-12)
    assert metrics["PQ_low"] < metrics["PQ"] < metrics["PQ_high"]
