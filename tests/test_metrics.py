"""Values of classes by Detectron2's names, and back."""

from ocr_panoptic.metrics import named, of_classes


def test_names_of_detectron2_and_back():
    """Classes may have any name."""
    values = {"playing-field": 20.0, "sky_low": None, "PQ-sky": 1.0}
    flat = named("PQ", values, values.values())
    assert list(flat) == ["PQ-playing-field", "PQ-sky_low", "PQ-PQ-sky"]
    assert of_classes({"PQ": 50.0, "PQ_th": 40.0, "BoundaryPQ-sky": 3.0, **flat}, "PQ") == values
