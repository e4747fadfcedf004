"""Scores of a task by Detectron2's names, and back."""

from ocr_panoptic.metrics import Scores, from_detectron2, to_detectron2

FLAT = {
    "PQ": 50.0,
    "PQ_th": 40.0,
    "mIoU_trimap_3": 30.0,
    "PQ_low": 45.0,
    "PQ_high": 55.0,
    "PQ-playing-field": 20.0,
    "PQ-sky_low": None,
    "isthing-sky_low": 0,
}


def test_names_of_detectron2_and_back():
    """Classes may have any name."""
    scores = Scores(
        overall={"PQ": 50.0, "PQ_th": 40.0, "mIoU_trimap_3": 30.0},
        per_class={"PQ": {"playing-field": 20.0, "sky_low": None}, "isthing": {"sky_low": 0}},
        intervals={"PQ": (45.0, 55.0)},
    )
    assert list(to_detectron2(scores).items()) == list(FLAT.items())
    assert from_detectron2(FLAT) == scores


def test_parts_stand_one_after_the_other():
    parts = (
        Scores({"a": 1.0}, {"a": {"x": 2.0}}),
        Scores({"b": 3.0}),
        Scores(intervals={"a": (0, 9)}),
    )
    assert list(to_detectron2(*parts)) == ["a", "a-x", "b", "a_low", "a_high"]
    assert from_detectron2(to_detectron2(*parts)) == Scores(
        {"a": 1.0, "b": 3.0}, {"a": {"x": 2.0}}, {"a": (0, 9)}
    )
