"""The files of a run; each metric is declared once."""

import csv
import json
import logging

import numpy as np
import pytest
from detectron2.data import Metadata

from ocr_panoptic import metrics
from ocr_panoptic.evaluation.stored import (
    StoredEvaluation,
    evaluation_folder,
    read_evaluation,
    read_table,
    write_evaluation,
    write_table,
)
from ocr_panoptic.formats.run_folder import read_training_log
from ocr_panoptic.metrics import METRICS, Metric, named, of_classes
from ocr_panoptic.workbench.looking.report import render_report

COLUMNS = ["PQ", "SQ", "RQ", "objects", "count_error", "count_bias", "TP", "FP", "FN", "IoU", "ACC"]
COLUMNS += ["AP_box", "AP_mask", "BoundaryPQ", "BoundaryIoU"]
RESULTS = {
    "panoptic_seg": {
        **{"PQ": 50.0, "PQ-disc": 40.5, "PQ-sky": np.nan, "SQ-disc": 81.0, "SQ-sky": np.nan},
        **{"RQ-disc": 50.0, "RQ-sky": np.nan, "TP-disc": 3, "TP-sky": 0, "FP-disc": 2, "FP-sky": 0},
        **{"FN-disc": 4, "FN-sky": 0, "isthing-disc": 1, "isthing-sky": 0},
        **{"objects-disc": 3.5, "count_error-disc": 1.5, "count_bias-disc": -1.0},
    },
    "sem_seg": {
        **{"mIoU": np.float64(70.0), "IoU-things": 60.25, "IoU-sky": 80.0},
        **{"ACC-things": 61.0, "ACC-sky": float("inf")},
    },
    "bbox": {"AP": 33.0, "AP50": 44.0, "AP-disc": 33.0},
    "segm": {"AP": np.float32(0.5), "AP-disc": np.nan},
}


def test_names_of_detectron2_and_back():
    values = {"playing-field": 20.0, "sky_low": None, "PQ-sky": 1.0}
    flat = named("PQ", values, values.values())
    assert list(flat) == ["PQ-playing-field", "PQ-sky_low", "PQ-PQ-sky"]
    assert of_classes({"PQ": 50.0, "PQ_th": 40.0, "BoundaryPQ-sky": 3.0, **flat}, "PQ") == values


def test_metrics_json(tmp_path):
    """NaN becomes null, because JSON has no NaN."""
    folder = tmp_path / "a" / "b"
    write_evaluation(RESULTS, folder, {"seed": np.int64(3), "loss": [1, np.nan]})
    json.loads((folder / "metrics.json").read_text(), parse_constant=pytest.fail)
    numbers = {
        task: {k: v if np.isfinite(v) else None for k, v in values.items()}
        for task, values in RESULTS.items()
    }
    run = {"seed": 3, "loss": [1, None]}
    assert read_evaluation(folder) == StoredEvaluation(numbers, run)
    write_evaluation({"bbox": {"AP": 1.0}}, folder, {"seed": 2})
    assert read_evaluation(folder) == StoredEvaluation({"bbox": {"AP": 1.0}}, {"seed": 2})
    assert len((folder / "per_class.csv").read_text().splitlines()) == 1
    assert {path.name for path in folder.iterdir()} == {"metrics.json", "per_class.csv"}
    missing = evaluation_folder(tmp_path / "run", "scenes_val")
    with pytest.raises(FileNotFoundError, match="inference/scenes_val/metrics.json.* evaluate "):
        read_evaluation(missing)


def test_per_class_csv(tmp_path):
    write_evaluation(RESULTS, tmp_path, {})
    assert list(csv.reader((tmp_path / "per_class.csv").open(newline=""))) == [
        ["class", "isthing", *COLUMNS],
        ["disc", "1", "40.5", "81.0", "50.0", "3.5", "1.5", "-1.0", "3", "2", "4"]
        + ["", "", "33.0", "", "", ""],
        ["sky", "0", *6 * [""], "0", "0", "0", "80.0", "", "", "", "", ""],
        ["things", *10 * [""], "60.25", "61.0", "", "", "", ""],
    ]


def test_tables(tmp_path):
    rows = [{"name": "a, b", "score": 1 / 3}, {"name": "", "score": float("nan")}]
    write_table(rows, tmp_path / "table.csv")
    assert read_table(tmp_path / "table.csv") == [{"name": "a, b", "score": repr(1 / 3)}, {}]
    write_table([], tmp_path / "empty.csv", ["name"])
    assert (tmp_path / "empty.csv").read_text() == "name\n"
    assert read_table(tmp_path / "empty.csv") == read_table(tmp_path / "none.csv") == []


def test_ap_of_the_only_thing_class(tmp_path):
    """Detectron2 reports AP by class only if there are several classes."""
    results = {**RESULTS, "bbox": {"AP": 33.0}, "segm": {"AP": 12.0}}
    write_evaluation(results, tmp_path, {})
    disc, *others = read_table(tmp_path / "per_class.csv")
    assert (disc["AP_box"], disc["AP_mask"]) == ("33.0", "12.0")
    assert not any("AP_box" in row for row in others)


def test_a_metric_is_declared_once(tmp_path, caplog, monkeypatch):
    """An entry in the table brings a metric into everything that a run reports."""
    new = Metric("sem_seg", "BIoU", "Boundary IoU", "IoU near edges", "Borders", "boundary")
    count = Metric("sem_seg", "holes", "Holes", "missing parts", column="holes", is_count=True)
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, new, count))
    values = {"BIoU": 41.25, "BIoU-sky": 42.5, "BIoU-things": np.nan, "holes-sky": 7}
    results = {**RESULTS, "sem_seg": {**RESULTS["sem_seg"], **values}}
    with caplog.at_level(logging.DEBUG):
        write_evaluation(results, tmp_path, {})

    written = read_evaluation(tmp_path).results["sem_seg"]
    assert {key: written[key] for key in values} == {**values, "BIoU-things": None}
    rows = {row["class"]: row for row in read_table(tmp_path / "per_class.csv")}
    assert (rows["sky"]["boundary"], rows["sky"]["holes"]) == ("42.5", "7")
    assert not any("boundary" in rows[name] for name in ("disc", "things"))
    heading, sky = (
        next(line.split() for line in caplog.text.splitlines() if line.startswith(start))
        for start in ("class", "sky")
    )
    assert (heading[-2:], sky[-2:]) == (["boundary", "holes"], ["42.50", "7"])
    page = render_report(
        **{"title": "", "description": "", "dataset": "", "training_log": [], "images": []},
        results=read_evaluation(tmp_path).results,
        metadata=Metadata(stuff_classes=["things", "sky"], stuff_colors=[[0, 0, 0]] * 2),
        settings={},
    )
    for text in ("<h3>Borders</h3>", "<dd>41.2", "<td>42.5</td>", "<td>7</td>", "Holes: missing"):
        assert text in page


def loss(iteration: int, value: float) -> dict:
    return {"iteration": iteration, "total_loss": value}


PQ, MIOU = {"panoptic_seg/PQ": 50.0}, {"sem_seg/mIoU": 10.0}


@pytest.mark.parametrize(
    "written, read",
    [
        ([], []),
        # A resumed run replaces the iterations that it repeats; the last has another period.
        (
            [loss(19, 5.0), loss(39, 4.0), loss(59, 3.0), loss(39, 2.0), loss(49, 1.0)],
            [loss(19, 5.0), loss(39, 2.0), loss(49, 1.0)],
        ),
        ([loss(9, 1.0), {"iteration": 9, **PQ}], [{**loss(9, 1.0), **PQ}]),
        # Detectron2 writes evaluations between two lines of training, every 20 iterations.
        (
            [loss(19, 3.0), {"iteration": 9, **MIOU}, loss(39, 2.0), {"iteration": 29, **MIOU}],
            [{"iteration": 9, **MIOU}, loss(19, 3.0), {"iteration": 29, **MIOU}, loss(39, 2.0)],
        ),
        # Losses may be gathered after learning rates are written, without a resumed run.
        ([{"iteration": 8, "lr": 0.1}, loss(6, 3.0)], [loss(6, 3.0), {"iteration": 8, "lr": 0.1}]),
        # Other programs, or a damaged disk, have written into the file.
        ([loss(0, 2.0), "\udcff\udcfe\n", "5\n", "[]\n", '{"a": 1}\n'], [loss(0, 2.0)]),
        # A kill has cut a line, which the next run's first line joins.
        (
            [loss(0, 2.0), '{"iteration": 1, "tot', loss(1, 1.0), loss(2, 0.5)],
            [loss(0, 2.0), loss(2, 0.5)],
        ),
    ],
)
def test_training_log(tmp_path, written, read):
    for row in written:
        with open(tmp_path / "metrics.json", "a", errors="surrogateescape") as file:
            file.write(row if isinstance(row, str) else json.dumps(row) + "\n")
    assert read_training_log(tmp_path) == read
