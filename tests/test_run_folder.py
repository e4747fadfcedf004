"""The files of a run, and that a metric is declared once."""

import csv
import json
import logging

import numpy as np
import pytest
from detectron2.data import Metadata

from ocr_panoptic import metrics
from ocr_panoptic.formats.run_folder import (
    StoredEvaluation,
    evaluation_folder,
    read_evaluation,
    read_table,
    read_training_log,
    write_evaluation,
    write_region_quality,
    write_table,
)
from ocr_panoptic.metrics import METRICS, Metric
from ocr_panoptic.workbench.looking.report import render_report

COLUMNS = ["PQ", "SQ", "RQ", "TP", "FP", "FN", "IoU", "ACC", "AP_box", "AP_mask"]
COLUMNS += ["BoundaryPQ", "BoundaryIoU"]
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
    write_evaluation(RESULTS, tmp_path / "a" / "b", {"seed": np.int64(3), "loss": [1, np.nan]})
    text = (tmp_path / "a" / "b" / "metrics.json").read_text()
    metrics = json.loads(text, parse_constant=pytest.fail)  # NaN is not JSON
    assert metrics["run"] == {"seed": 3, "loss": [1, None]}
    assert metrics["panoptic_seg"]["PQ-disc"] == 40.5
    assert metrics["panoptic_seg"]["PQ-sky"] is None
    assert metrics["sem_seg"]["ACC-sky"] is None
    assert metrics["sem_seg"]["mIoU"] == 70
    assert metrics["segm"]["AP"] == 0.5
    assert list(metrics) == ["run", *RESULTS]
    run = metrics.pop("run")
    assert read_evaluation(tmp_path / "a" / "b") == StoredEvaluation(metrics, run)


def test_per_class_csv(tmp_path):
    write_evaluation(RESULTS, tmp_path, {})
    assert list(csv.reader((tmp_path / "per_class.csv").open(newline=""))) == [
        ["class", "isthing", *COLUMNS],
        ["disc", "1", "40.5", "81.0", "50.0", "3", "2", "4", "", "", "33.0", "", "", ""],
        ["sky", "0", "", "", "", "0", "0", "0", "80.0", "", "", "", "", ""],
        ["things", "", "", "", "", "", "", "", "60.25", "61.0", "", "", "", ""],
    ]


def test_tables(tmp_path):
    rows = [{"name": "a, b", "score": 1 / 3}, {"name": "", "score": float("nan")}]
    write_table(rows, tmp_path / "table.csv")
    assert read_table(tmp_path / "table.csv") == [{"name": "a, b", "score": repr(1 / 3)}, {}]
    write_table([], tmp_path / "empty.csv", ["name"])
    assert (tmp_path / "empty.csv").read_text() == "name\n"
    assert read_table(tmp_path / "empty.csv") == read_table(tmp_path / "none.csv") == []


def test_ap_of_the_only_thing_class(tmp_path):
    """Detectron2 reports the AP of classes only where there are several."""
    results = {**RESULTS, "bbox": {"AP": 33.0}, "segm": {"AP": 12.0}}
    write_evaluation(results, tmp_path, {})
    with open(tmp_path / "per_class.csv", newline="") as file:
        disc, *others = csv.DictReader(file)
    assert (disc["AP_box"], disc["AP_mask"]) == ("33.0", "12.0")
    assert {row["AP_box"] for row in others} == {""}


def test_table_is_logged(tmp_path, caplog):
    with caplog.at_level(logging.DEBUG):
        write_evaluation(RESULTS, tmp_path, {})
    table = caplog.text.splitlines()
    disc = next(line for line in table if line.startswith("disc"))
    assert " ".join(disc.split()) == "disc thing 40.50 81.00 50.00 3 2 4 33.00"
    assert not any("AP_mask" in line for line in table)  # a column without any value


def test_repeating_replaces_and_leaves_no_other_files(tmp_path):
    write_evaluation(RESULTS, tmp_path, {"seed": 1})
    write_evaluation({"bbox": {"AP": 1.0}}, tmp_path, {"seed": 2})
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        "run": {"seed": 2},
        "bbox": {"AP": 1.0},
    }
    assert len((tmp_path / "per_class.csv").read_text().splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", "per_class.csv"}


def test_a_metric_is_declared_once(tmp_path, caplog, monkeypatch):
    """One entry of the table, and it is in all that a run says."""
    new = Metric("sem_seg", "BIoU", "Boundary IoU", "IoU near edges", "Borders", "boundary")
    count = Metric("sem_seg", "holes", "Holes", "missing parts", column="holes", is_count=True)
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, new, count))
    values = {"BIoU": 41.25, "BIoU-sky": 42.5, "BIoU-things": np.nan, "holes-sky": 7}
    results = {**RESULTS, "sem_seg": {**RESULTS["sem_seg"], **values}}
    with caplog.at_level(logging.DEBUG):
        write_evaluation(results, tmp_path, {})

    written = json.loads((tmp_path / "metrics.json").read_text())["sem_seg"]
    assert (written["BIoU"], written["BIoU-sky"], written["BIoU-things"]) == (41.25, 42.5, None)
    with open(tmp_path / "per_class.csv", newline="") as file:
        rows = {row["class"]: row for row in csv.DictReader(file)}
    assert {name: row["boundary"] for name, row in rows.items()} == {
        "sky": "42.5",
        **dict.fromkeys(("disc", "things"), ""),
    }
    assert rows["sky"]["holes"] == "7"
    table = caplog.text.splitlines()
    heading = next(line for line in table if "boundary" in line)
    sky = next(line for line in table if line.startswith("sky"))
    assert heading.split()[-2:] == ["boundary", "holes"]
    assert sky.split()[-2:] == ["42.50", "7"]
    page = render_report(
        title="",
        description="",
        dataset="",
        evaluation=read_evaluation(tmp_path),
        training_log=[],
        images=[],
        metadata=Metadata(stuff_classes=["things", "sky"], stuff_colors=[[0, 0, 0]] * 2),
        settings={},
    )
    assert "<h3>Borders</h3>" in page
    assert '<abbr title="IoU near edges, mean over the classes">Boundary IoU</abbr>' in page
    assert "<dd>41.2" in page
    assert '<th scope="col">Boundary IoU</th>' in page and '<th scope="col">Holes</th>' in page
    assert "<td>42.5</td>" in page and "<td>7</td>" in page
    assert "Boundary IoU: IoU near edges;" in page and "Holes: missing parts." in page


def test_region_quality(tmp_path):
    folder = evaluation_folder(tmp_path, "a_val")
    path = write_region_quality(
        {"sky": {"uniform": np.nan, "own weight": 2.0}}, folder, {"seed": 3}
    )
    assert path == tmp_path / "inference/a_val/region_quality.json"
    assert json.loads(path.read_text()) == {
        "run": {"seed": 3},
        "classes": {"sky": {"uniform": None, "own weight": 2.0}},
    }


def test_a_missing_evaluation_names_the_command_that_makes_it(tmp_path):
    folder = evaluation_folder(tmp_path / "run", "scenes_val")
    with pytest.raises(FileNotFoundError) as error:
        read_evaluation(folder)
    assert str(tmp_path / "run/inference/scenes_val/metrics.json") in str(error.value)
    assert "ocr-panoptic evaluate --config-file CONFIG" in str(error.value)
    assert str(error.value).endswith(f"OUTPUT_DIR {tmp_path / 'run'}")


def write_log(path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_resumed_run_replaces_what_it_repeats(tmp_path):
    file = tmp_path / "metrics.json"
    values = [(19, 5.0), (39, 4.0), (59, 3.0), (39, 2.0), (49, 1.0)]  # the last: another period
    write_log(file, [{"iteration": i, "total_loss": v} for i, v in values])
    found = [(row["iteration"], row["total_loss"]) for row in read_training_log(tmp_path)]
    assert found == [(19, 5.0), (39, 2.0), (49, 1.0)]


def test_lines_of_one_iteration_are_one_record(tmp_path):
    file = tmp_path / "metrics.json"
    write_log(file, [{"iteration": 9, "total_loss": 1.0}, {"iteration": 9, "panoptic_seg/PQ": 50}])
    assert read_training_log(tmp_path) == [
        {"iteration": 9, "total_loss": 1.0, "panoptic_seg/PQ": 50}
    ]


def test_evaluations_between_two_lines_of_training(tmp_path):
    """Detectron2 writes them every 20 iterations at once."""
    file = tmp_path / "metrics.json"
    rows = [{"iteration": 19, "total_loss": 3.0}, {"iteration": 9, "sem_seg/mIoU": 10.0}]
    rows += [{"iteration": 39, "total_loss": 2.0}, {"iteration": 29, "sem_seg/mIoU": 20.0}]
    write_log(file, rows)
    assert read_training_log(tmp_path) == [rows[1], rows[0], rows[3], rows[2]]


def test_lines_without_losses_in_any_order(tmp_path):
    """Losses may be gathered later than learning rates are written: nothing was resumed."""
    rows = [{"iteration": 8, "lr": 0.1}, {"iteration": 6, "total_loss": 3.0}]
    rows += [{"iteration": 29, "panoptic_seg/PQ": 50.0}, {"iteration": 27, "total_loss": 2.0}]
    write_log(tmp_path / "metrics.json", rows)
    assert read_training_log(tmp_path) == [rows[1], rows[0], rows[3], rows[2]]


def test_no_log_is_an_empty_log(tmp_path):
    assert read_training_log(tmp_path) == []


def test_a_line_that_a_kill_has_cut(tmp_path):
    """The next run's line joins it."""
    file = tmp_path / "metrics.json"
    file.write_text('{"iteration": 0, "total_loss": 2.0}\n{"iteration": 1, "tot')
    with open(file, "a") as log:
        log.write('{"iteration": 1, "total_loss": 1.0}\n{"iteration": 2, "total_loss": 0.5}\n')
    assert [row["total_loss"] for row in read_training_log(tmp_path)] == [2.0, 0.5]
