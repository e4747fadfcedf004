"""Panoptic quality, compared with panopticapi and with numbers worked out by hand."""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import DatasetCatalog, MetadataCatalog
from panopticapi.evaluation import pq_compute
from PIL import Image

from ocr_panoptic.evaluation.panoptic_quality import PanopticQuality
from ocr_panoptic.evaluation.panoptic_truth import PanopticTruth
from ocr_panoptic.evaluation.segment_matching import SegmentOverlaps
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png
from support.panoptic_samples import (
    Sample,
    faulty_copy,
    make_categories,
    overlaps_of,
    random_samples,
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
    """Check that the values are equal to the last digit."""
    averages = quality.averages()
    for suffix, group in {"": "All", "_th": "Things", "_st": "Stuff"}.items():
        for metric in ("PQ", "SQ", "RQ"):
            assert averages[metric + suffix] == expected[group][metric.lower()]
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


def test_groups_without_segments_are_nan():
    categories = make_categories(1, 1)
    assert np.isnan(list(PanopticQuality(categories).averages().values())).all()
    ids, segments = np.ones((2, 2), dtype=np.int32), [segment(1, STUFF)]
    averages = our_quality(categories, [Sample(1, ids, segments, ids, segments)]).averages()
    assert averages["PQ"] == averages["PQ_st"] == 1 and np.isnan(averages["PQ_th"])


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
    ):
        assert SegmentOverlaps(*arguments).matches() == (*expected, [])


IDS = np.array([[1, 1, 2, 2]], dtype=np.int32)
SEGMENTS = [{"id": 1, "category_id": 1}, {"id": 2, "category_id": 1}]


@pytest.mark.parametrize(
    "predicted_ids, predicted_segments, message",
    [
        (IDS, SEGMENTS[:1], r"1 segment ids that its segments_info does not name: 2"),
        (IDS[:, :3], SEGMENTS, r"size \[1, 3\] .* truth \[1, 4\]"),
        (IDS - 2, SEGMENTS, r"does not name: -1"),
        (IDS << 24, SEGMENTS, r"does not name: 16777216, 33554432"),
    ],
)
def test_faulty_predictions(predicted_ids, predicted_segments, message):
    with pytest.raises(ValueError, match=message):
        SegmentOverlaps(IDS, SEGMENTS, predicted_ids, predicted_segments)


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
