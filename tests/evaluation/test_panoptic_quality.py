"""PQ and Boundary PQ, compared with panopticapi, with eroded masks and with numbers by hand."""

import json
import multiprocessing
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from panopticapi.evaluation import pq_compute
from PIL import Image

from ocr_panoptic.evaluation.boundaries import boundary_distance
from ocr_panoptic.evaluation.panoptic_evaluator import PanopticEvaluator
from ocr_panoptic.evaluation.panoptic_quality import PanopticQuality
from ocr_panoptic.evaluation.panoptic_truth import PanopticTruth
from ocr_panoptic.evaluation.segment_matching import SegmentOverlaps
from ocr_panoptic.evaluation.stored import read_table
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from support.panoptic_samples import (
    Sample,
    eroded,
    faulty_copy,
    inputs_and_outputs,
    make_categories,
    overlaps_of,
    random_samples,
    register,
    write_panoptic,
)

SHARED = Path(__file__).parents[3] / "shared/data"
COCO_SAMPLE = Path(os.environ.get("OCR_PANOPTIC_TEST_DATA", SHARED)) / "coco_panoptic_sample"


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    """Use one process, in which panopticapi adds up the images in order."""
    monkeypatch.setattr(multiprocessing, "cpu_count", lambda: 1)


def panopticapi_result(folder, categories, samples) -> dict:
    true_json, true_folder = write_panoptic(folder / "truth", categories, samples)
    predicted_json, predicted_folder = write_panoptic(folder / "pred", categories, samples, True)
    return pq_compute(true_json, predicted_json, true_folder, predicted_folder)


def our_quality(categories, samples) -> PanopticQuality:
    quality = PanopticQuality(categories)
    for sample in samples:
        quality.add(overlaps_of(sample).matches())
    return quality


def assert_same(quality: PanopticQuality, expected: dict) -> None:
    averages = quality.averages()
    for suffix, group in {"": "All", "_th": "Things", "_st": "Stuff"}.items():
        for metric in ("PQ", "SQ", "RQ"):
            theirs = expected[group][metric.lower()]  # Python 3.12 sums floats more precisely
            assert averages[metric + suffix] == pytest.approx(theirs, rel=1e-14, abs=0)
    occurs = quality.counts.any(axis=1)
    assert occurs.sum() == expected["All"]["n"]
    for metric, values in quality.per_class().items():
        theirs = np.array([result[metric.lower()] for result in expected["per_class"].values()])
        assert np.array_equal(values[occurs], theirs[occurs])
        assert np.isnan(values[~occurs]).all() and (theirs[~occurs] == 0).all()


def test_hand_worked():
    categories = [{"id": 1, "isthing": 1}, {"id": 2, "isthing": 0}]
    true_ids = np.tile([1, 1, 2, 2, 0, 3], (4, 1))
    true_segments = [
        {"id": 1, "category_id": 1, "iscrowd": 0},
        {"id": 2, "category_id": 2, "iscrowd": 0},
        {"id": 3, "category_id": 1, "iscrowd": 0},  # missed
    ]
    predicted_ids = np.tile([7, 7, 8, 8, 8, 9], (4, 1))
    predicted_ids[2:, 1] = 0  # 7 covers 6 of 8 pixels; 8 exceeds its segment, but only into void
    predicted_segments = [
        {"id": 7, "category_id": 1},
        {"id": 8, "category_id": 2},
        {"id": 9, "category_id": 2},  # right pixels, wrong category
    ]
    sample = Sample(1, true_ids, true_segments, predicted_ids, predicted_segments)
    matches = overlaps_of(sample).matches()
    assert matches.true_positives == [(1, 0.75), (2, 1.0)]
    assert matches.false_positives == [2]
    assert matches.false_negatives == [1]
    assert matches.confusions == [(1, 2)]

    quality = our_quality(categories, [sample])
    assert quality.counts.tolist() == [[1, 0, 1], [1, 1, 0]]
    expected = {"PQ": 7 / 12, "SQ": 7 / 8, "RQ": 2 / 3}
    expected |= {"PQ_th": 1 / 2, "SQ_th": 3 / 4, "RQ_th": 2 / 3}
    expected |= {"PQ_st": 2 / 3, "SQ_st": 1.0, "RQ_st": 2 / 3}
    assert quality.averages() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_things, num_stuff", [(3, 2), (20, 30)])
def test_equals_panopticapi(tmp_path, seed, num_things, num_stuff):
    rng = np.random.default_rng(seed)
    categories = make_categories(num_things, num_stuff)
    samples = random_samples(rng, 40, categories)
    quality = our_quality(categories, samples)
    # The samples must contain all cases.
    assert (quality.counts.sum(axis=0) > 20).all()
    assert any(segment["iscrowd"] for sample in samples for segment in sample.segments)
    assert_same(quality, panopticapi_result(tmp_path, categories, samples))


THING, STUFF = 2, 5  # the categories of make_categories(1, 1)


def by_columns(*ids: int) -> np.ndarray:
    return np.repeat([ids], 4, axis=0).astype(np.int32)


def segment(id_: int, category: int, iscrowd: int = 0, area: int = 4) -> dict:
    return {"id": id_, "category_id": category, "iscrowd": iscrowd, "area": area}


def test_true_ids_that_the_json_lacks_are_not_void(tmp_path):
    """Their pixels belong to no segment, and a prediction on them is wrong, as in panopticapi."""
    ids, categories = by_columns(1, 1, 5, 5, 5), make_categories(1, 1)
    true, predicted = [segment(1, STUFF, area=8)], [segment(1, STUFF), segment(5, THING)]
    sample = Sample(1, ids, true, ids, predicted)
    quality = our_quality(categories, [sample])
    assert quality.counts.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert_same(quality, panopticapi_result(tmp_path, categories, [sample]))


@pytest.mark.parametrize("last, false_positives", [(1, 1), (2, 0)])
def test_the_last_crowd_of_a_category_counts(tmp_path, last, false_positives):
    """A prediction on crowd 2 is forgiven only if crowd 2 is the last crowd in the JSON."""
    ids, categories = by_columns(1, 1, 2, 2, 3), make_categories(1, 1)
    true = [segment(3, STUFF), *(segment(id_, THING, 1, 8) for id_ in (3 - last, last))]
    found = [segment(2, THING), segment(3, STUFF)]
    sample = Sample(1, ids, true, np.where(ids == 1, 0, ids), found)
    quality = our_quality(categories, [sample])
    assert quality.counts.tolist() == [[0, false_positives, 0], [1, 0, 0]]
    if false_positives:  # panopticapi divides by zero if a group has no segment
        assert_same(quality, panopticapi_result(tmp_path, categories, [sample]))


def test_areas_come_from_the_png(tmp_path):
    """The IoU of panopticapi, which trusts the JSON's area, exceeds 1 if that area is too small."""
    ids, categories = by_columns(1, 1, 1, 2), make_categories(1, 1)
    segments = [segment(1, THING, area=1), segment(2, STUFF, area=1)]
    sample = Sample(1, ids, segments, ids, segments)
    assert panopticapi_result(tmp_path, categories, [sample])["All"]["sq"] > 1
    assert set(our_quality(categories, [sample]).averages().values()) == {1.0}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(not COCO_SAMPLE.exists(), reason="set OCR_PANOPTIC_TEST_DATA")
def test_equals_panopticapi_on_coco(tmp_path):
    truth = json.loads((COCO_SAMPLE / "panoptic_examples.json").read_text())
    categories = json.loads((COCO_SAMPLE / "panoptic_coco_categories.json").read_text())
    rng = np.random.default_rng(0)
    samples = []
    for annotation in truth["annotations"]:
        ids = read_panoptic_png(COCO_SAMPLE / "panoptic_examples" / annotation["file_name"])
        segments = annotation["segments_info"]
        prediction = faulty_copy(rng, ids, segments, categories)
        samples.append(Sample(annotation["image_id"], ids, segments, *prediction))
    quality = our_quality(categories, samples)
    assert (quality.counts.sum(axis=0) > 0).all()
    assert_same(quality, panopticapi_result(tmp_path, categories, samples))


def test_nothing_predicted_and_segments_without_pixels():
    ids = np.ones((2, 3), dtype=np.int32)
    truth = [{"id": 1, "category_id": 4, "iscrowd": 0}]
    empty = np.zeros_like(ids)
    lost = {"id": 2, "category_id": 5}  # the PNG lacks this segment
    for arguments, expected in (
        ((ids, truth, empty, []), ([], [], [4])),
        ((ids, truth, empty, [{"id": 1, "category_id": 4}]), ([], [], [4])),
        ((ids, [*truth, lost], ids, truth), ([(4, 1.0)], [], [5])),
        ((empty, [], empty, []), ([], [], [])),
        # Most of the prediction is on void: it is neither wrong nor confused with the true segment.
        ((np.eye(3, dtype=np.int32), truth, np.full((3, 3), 2), [lost]), ([], [], [4])),
    ):
        assert SegmentOverlaps(*arguments).matches() == (*expected, [])
    assert np.isnan(list(PanopticQuality(make_categories(1, 1)).averages().values())).all()


@pytest.mark.parametrize("hides", [False, True])
def test_a_segment_that_others_hide_does_not_count(tmp_path, clean_catalog, hides):
    """In COCO, objects lie above stuff and may cover all pixels of a segment of the JSON."""
    Image.fromarray(np.full((2, 3, 3), [7, 0, 0], np.uint8)).save(tmp_path / "a.png")
    segments = [{"id": 7, "category_id": 1}, {"id": 8, "category_id": 1}]
    annotation = {"image_id": 1, "file_name": "a.png", "segments_info": segments}
    truth = {"categories": [{"id": 1, "name": "sky", "isthing": 0}], "annotations": [annotation]}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    DatasetCatalog.register("covered", list)
    paths = {"panoptic_json": str(tmp_path / "truth.json"), "panoptic_root": str(tmp_path)}
    metadata = MetadataCatalog.get("covered").set(**paths, hides_segments=hides)
    found = PanopticTruth(metadata)[1].segments
    assert [segment["id"] for segment in found] == ([7] if hides else [7, 8])


SIZE = (70, 119)  # for which the distance is 3


def iou(true: np.ndarray, predicted: np.ndarray, void: np.ndarray) -> float:
    return (true & predicted).sum() / max(1, (true | (predicted & ~void)).sum())


def add_by_definition(sample, quality: dict[int, Counter]) -> None:
    """Add "iou", "tp", "fp" and "fn" of each category."""
    void, matched = sample.ids == 0, set()
    predicted = {s["id"]: sample.predicted_ids == s["id"] for s in sample.predicted_segments}
    regions = {id_: mask & ~eroded(mask, 3) for id_, mask in predicted.items()}
    crowds = {s["category_id"]: s["id"] for s in sample.segments if s["iscrowd"]}
    for segment in (s for s in sample.segments if not s["iscrowd"]):
        mask, category = sample.ids == segment["id"], segment["category_id"]
        region = mask & ~eroded(mask, 3)
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


def test_boundary_pq_equals_the_definition(tmp_path, clean_catalog):
    assert boundary_distance(SIZE) == 3
    rng, name, categories = np.random.default_rng(3), "samples", make_categories(3, 2)
    samples = random_samples(rng, 30, categories, SIZE)
    register(name, tmp_path, categories, samples)
    evaluator = PanopticEvaluator(name)
    evaluator.process(*inputs_and_outputs(name, categories, samples, rng))
    metrics, quality = evaluator.evaluate()["panoptic_seg"], evaluator.boundary_quality
    theirs = {category["id"]: Counter() for category in categories}
    for sample in samples:
        add_by_definition(sample, theirs)
    expected = [[found[key] for key in ("iou", "tp", "fp", "fn")] for found in theirs.values()]
    np.testing.assert_allclose(quality.statistics(), expected, rtol=1e-12)
    # The measure differs from PQ: some segments match only by their masks.
    assert 20 < quality.counts[:, 0].sum() < evaluator.quality.counts[:, 0].sum()
    reported = {f"BoundaryPQ{s}": 100 * quality.averages()[f"PQ{s}"] for s in ("", "_th", "_st")}
    for category, value in zip(categories, quality.per_class()["PQ"], strict=True):
        reported[f"BoundaryPQ-{category['name']}"] = 100 * value
    assert {key: metrics[key] for key in reported} == pytest.approx(reported, rel=1e-12)
    assert metrics["PQ_low"] < metrics["PQ"] < metrics["PQ_high"]


def test_counts_by_hand(tmp_path, clean_catalog):
    """Crowds, and predictions in void or on crowds, are not counted; nor are they in PQ."""
    cases = [
        ([1, 2, 3, 4, 4], [1, 4, 4, 4, 4]),  # 3 objects, 1 predicted
        ([1, 4, 4, 4, 4], [1, 2, 4, 4, 4]),  # 1 object, 2 predicted
        ([1, 4, 4, 4, 4], [4, 4, 4, 5, 2]),  # 1 object; 1 elsewhere: the count is right
        ([4, 4, 0, 9, 9], [4, 4, 1, 2, 4]),  # no objects; 2 in void and on a crowd
    ]
    thing, stuff, rare, ghost = categories = make_categories(3, 1)  # only predictions show ghosts
    assert [c["isthing"] for c in categories] == [1, 0, 1, 1]
    of_segment = {4: stuff["id"], 5: ghost["id"]}
    samples = []
    for number, columns in enumerate(cases, 10):
        maps = [by_columns(*ids) for ids in columns]
        lists = [
            [segment(k, of_segment.get(k, thing["id"]), int(k == 9)) for k in {*ids} - {0}]
            for ids in columns
        ]
        samples.append(Sample(number, maps[0], lists[0], maps[1], lists[1]))
    register("counted", tmp_path, categories, samples)
    evaluator = PanopticEvaluator("counted", tmp_path)
    rng = np.random.default_rng(0)
    evaluator.process(*inputs_and_outputs("counted", categories, samples, rng))
    found = evaluator.evaluate()["panoptic_seg"]
    expected = {"objects": 5 / 4, "count_error": 3 / 4, "count_bias": -1 / 4}
    of_ghost = {"objects": 0, "count_error": 1 / 4, "count_bias": 1 / 4}
    for key, value in expected.items():
        assert found[f"{key}-{ghost['name']}"] == of_ghost[key]
        assert found[key] == (value + of_ghost[key]) / 2  # the mean leaves out the rare class
        assert found[f"{key}-{thing['name']}"] == value and np.isnan(found[f"{key}-{rare['name']}"])
        assert f"{key}-{stuff['name']}" not in found
    rows = {r["file_name"][-6:-4]: r for r in read_table(tmp_path / "panoptic_seg_per_image.csv")}
    images = [[row["true objects"], row["predicted objects"]] for _, row in sorted(rows.items())]
    assert images == [["3", "1"], ["1", "2"], ["1", "2"], ["0", "0"]]
    assert found["PQ_th_low"] <= found["PQ_th"] <= found["PQ_th_high"] < 100
