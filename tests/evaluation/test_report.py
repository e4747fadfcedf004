"""metrics.json, per_class.csv and the table of the classes."""

import csv
import json
import logging

import numpy as np
import pytest

from ocr_panoptic.evaluation import write_results

COLUMNS = ["PQ", "SQ", "RQ", "TP", "FP", "FN", "IoU", "ACC", "AP_box", "AP_mask"]
RESULTS = {
    "panoptic_seg": {
        "PQ": 50.0,
        "PQ-disc": 40.5,
        "PQ-sky": np.nan,
        "SQ-disc": 81.0,
        "SQ-sky": np.nan,
        "RQ-disc": 50.0,
        "RQ-sky": np.nan,
        "TP-disc": 3,
        "TP-sky": 0,
        "FP-disc": 2,
        "FP-sky": 0,
        "FN-disc": 4,
        "FN-sky": 0,
        "isthing-disc": 1,
        "isthing-sky": 0,
    },
    "sem_seg": {
        "mIoU": np.float64(70.0),
        "IoU-things": 60.25,
        "IoU-sky": 80.0,
        "ACC-things": 61.0,
        "ACC-sky": float("inf"),
    },
    "bbox": {"AP": 33.0, "AP50": 44.0, "AP-disc": 33.0},
    "segm": {"AP": np.float32(0.5), "AP-disc": np.nan},
}


def test_metrics_json(tmp_path):
    write_results(RESULTS, tmp_path / "a" / "b", {"seed": np.int64(3), "loss": [1, np.nan]})
    text = (tmp_path / "a" / "b" / "metrics.json").read_text()
    metrics = json.loads(text, parse_constant=pytest.fail)  # NaN is not JSON
    assert metrics["run"] == {"seed": 3, "loss": [1, None]}
    assert metrics["panoptic_seg"]["PQ-disc"] == 40.5
    assert metrics["panoptic_seg"]["PQ-sky"] is None
    assert metrics["sem_seg"]["ACC-sky"] is None
    assert metrics["sem_seg"]["mIoU"] == 70
    assert metrics["segm"]["AP"] == 0.5
    assert list(metrics) == ["run", *RESULTS]


def test_per_class_csv(tmp_path):
    write_results(RESULTS, tmp_path, {})
    with open(tmp_path / "per_class.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["class", "isthing", *COLUMNS],
        ["disc", "1", "40.5", "81.0", "50.0", "3", "2", "4", "", "", "33.0", ""],
        ["sky", "0", "", "", "", "0", "0", "0", "80.0", "", "", ""],
        ["things", "", "", "", "", "", "", "", "60.25", "61.0", "", ""],
    ]


def test_ap_of_the_only_thing_class(tmp_path):
    """Detectron2 reports the AP of classes only where there are several."""
    results = {**RESULTS, "bbox": {"AP": 33.0}, "segm": {"AP": 12.0}}
    write_results(results, tmp_path, {})
    with open(tmp_path / "per_class.csv", newline="") as file:
        disc, *others = csv.DictReader(file)
    assert (disc["AP_box"], disc["AP_mask"]) == ("33.0", "12.0")
    assert {row["AP_box"] for row in others} == {""}


def test_table_is_logged(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        write_results(RESULTS, tmp_path, {})
    table = caplog.text.splitlines()
    disc = next(line for line in table if line.startswith("disc"))
    assert " ".join(disc.split()) == "disc thing 40.50 81.00 50.00 3 2 4 33.00"
    assert not any("AP_mask" in line for line in table)  # a column without any value


def test_repeating_replaces_and_leaves_no_other_files(tmp_path):
    write_results(RESULTS, tmp_path, {"seed": 1})
    write_results({"bbox": {"AP": 1.0}}, tmp_path, {"seed": 2})
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        "run": {"seed": 2},
        "bbox": {"AP": 1.0},
    }
    assert len((tmp_path / "per_class.csv").read_text().splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", "per_class.csv"}
