"""A study end to end on tiny data, and its summary by hand."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from ocr_panoptic.workbench.comparing.intervals import Interval
from ocr_panoptic.workbench.comparing.study import Study, System, read_runs, run_study
from ocr_panoptic.workbench.comparing.study_tables import (
    metric_gains_table,
    study_curves,
    study_report,
    study_table,
    summarise,
)
from support.forked import Forked
from support.study_records import cells, run_record
from support.tiny_runs import ROOT, SEMANTIC_CONFIG, TINY_SEMANTIC

TRAIN = [sys.executable, str(ROOT / "train_net.py")]
ABSENT = [sys.executable, "absent.py"]
TINY = (
    *("SOLVER.MAX_ITER", "6", "SOLVER.IMS_PER_BATCH", "2", "TEST.EVAL_PERIOD", "3"),
    *("DATALOADER.NUM_WORKERS", "0", "MODEL.DEVICE", "cpu", "SOLVER.CHECKPOINT_PERIOD", "3"),
)


@pytest.fixture
def study() -> Study:
    opts = (*TINY_SEMANTIC, *TINY)
    systems = {
        "none": System(SEMANTIC_CONFIG, (*opts, "MODEL.CONTEXT.NAME", "none"), (3,), "none"),
        "OCR": System(SEMANTIC_CONFIG, opts, (3,), "none"),
    }
    return Study(systems, ("sem_seg/mIoU", "sem_seg/pACC"))


@pytest.fixture
def forked(monkeypatch):
    """Trainings are copies of this process."""
    forks = SimpleNamespace(Popen=Forked, STDOUT=subprocess.STDOUT)
    monkeypatch.setattr("ocr_panoptic.workbench.comparing.study.subprocess", forks)


@pytest.mark.slow
def test_end_to_end_and_again(tiny_data, study, tmp_path, forked):
    output, length = tmp_path / "out", ("SOLVER.MAX_ITER", "0", "SOLVER.EPOCHS", "1.5")  # 6
    systems = study.systems.items()
    systems = {name: replace(system, opts=(*system.opts, *length)) for name, system in systems}
    study = replace(study, systems=systems)
    run_study(study, TRAIN, output)
    records = read_runs(study, output)
    assert [(r["system"], r["seed"]) for r in records] == [("none", 3), ("OCR", 3)]
    for record in records:
        assert record["run"]["seed"] == record["seed"]
        assert str(tmp_path) not in json.dumps(record)  # results are published
        curve = record["curves"]["sem_seg/mIoU"]
        assert [iteration for iteration, _ in curve] == [3, 6]
        assert curve[-1][1] == record["metrics"]["sem_seg/mIoU"]
        assert 2**27 < record["peak_memory_bytes"] < 2**35
        assert 0 < record["seconds_per_iteration"] < record["wall_seconds"]
        assert record["cpu_seconds"] > 0
    assert records[1]["parameters"] > records[0]["parameters"]
    rows = summarise(study, records)
    assert study_table(rows, study.metrics).count("\n") == 3
    study_curves(study, records).savefig(tmp_path / "curves.png")

    # One run was interrupted behind its last iteration; the other is left alone.
    record = output / "OCR/seed3/study_run.json"
    untouched = (output / "none/seed3/metrics.json").read_bytes()
    record.unlink()
    assert len(read_runs(study, output)) == 1
    run_study(study, TRAIN, output)
    again = json.loads(record.read_text())
    assert again["resumed"]
    assert again["metrics"] == records[1]["metrics"]
    assert (output / "none/seed3/metrics.json").read_bytes() == untouched


def test_runs_of_a_study_that_has_changed_since_are_refused(study, tmp_path):
    output, (config, opts) = tmp_path / "out", study.systems["OCR"].settings(3).values()
    record = {"config": config, "opts": opts, "metrics": {}}
    (output / "OCR/seed3").mkdir(parents=True)
    (output / "OCR/seed3/study_run.json").write_text(json.dumps(record))
    assert read_runs(study, output) == [record]
    system = study.systems["OCR"]
    longer = replace(system, opts=(*system.opts, "SOLVER.MAX_ITER", "7"))
    changed = replace(study, systems={**study.systems, "OCR": longer})
    message = r"study_run.json: OCR, seed 3 was trained with .*.yaml SOLVER.MAX_ITER 6; .* 7"
    for use in (
        lambda: read_runs(changed, output),
        lambda: run_study(changed, ABSENT, output),
    ):
        with pytest.raises(ValueError, match=message):
            use()


def test_a_failing_run_names_its_log(study, tmp_path):
    with pytest.raises(ValueError, match=r"none, seed 3 failed with exit code 2; see (.+)\. The"):
        run_study(study, ABSENT, tmp_path / "out")
    assert "can't open" in (tmp_path / "out/none/seed3/study_log.txt").read_text()
    assert read_runs(study, tmp_path / "out") == []


def test_a_trial_trains_in_place_of_the_command(study, tmp_path):
    trial = (str(tmp_path / "absent_trial.py"), "skip")
    systems = {"tried": replace(study.systems["none"], trial=trial)}
    with pytest.raises(ValueError, match=r"absent_trial\.py skip --config-file"):
        run_study(replace(study, systems=systems), TRAIN, tmp_path / "out")


def test_runs_of_another_process_are_left_to_it(study, tmp_path, capsys):
    output = tmp_path / "out"
    (output / "none/seed3").mkdir(parents=True)
    with FileLock(output / "none/seed3/study_run.lock"), pytest.raises(ValueError, match="OCR, se"):
        run_study(study, ABSENT, output)
    assert "none, seed 3: another process trains it\nOCR, seed 3: " in capsys.readouterr().out
    assert not (output / "none/seed3/study_log.txt").exists()
    assert (output / "OCR/seed3/study_log.txt").exists()


@pytest.mark.slow
def test_a_metric_that_does_not_exist_shows_after_the_first_run(tiny_data, study, tmp_path, forked):
    study = replace(study, metrics=("sem_seg/mIou",))
    with pytest.raises(ValueError, match="no metric sem_seg/mIou; the evaluation has sem_seg/mIoU"):
        run_study(study, TRAIN, tmp_path / "out")


def test_summary_by_hand():
    systems = {n: System(Path("a.yaml"), (), (1, 2, 3), "none") for n in ("none", "OCR", "PPM")}
    study = Study(systems, ("sem_seg/mIoU",))
    records = [run_record("none", s, v, [[10, v]]) for s, v in ((1, 50.0), (2, 52.0), (3, 57.0))]
    records += [run_record("OCR", s, v, [[10, v]]) for s, v in ((1, 53.0), (3, 58.0))]
    rows = none, ocr, ppm = summarise(study, records)
    (metric,) = study.metrics
    assert none.means[metric] == pytest.approx((53.0, 13**0.5))
    assert none.gains[metric] is None
    assert ocr.means[metric] == pytest.approx((55.5, 12.5**0.5))
    # Paired: 3 with seed 1 and 1 with seed 3; the mean of all seeds would give 2.5. Two pairs
    # have a deviation of 2 ** 0.5, an error of 1 and one degree of freedom.
    assert ocr.gains[metric] == Interval(2.0, pytest.approx(12.706, abs=1e-3), 2)
    assert (ocr.runs, ocr.costs) == (2, (2_500_000, 0.2, 200, 3 * 2**20))
    assert ppm.runs == 0 and ppm.means[metric] == (None, None)

    lines = cells(study_table(rows, study.metrics))
    assert lines[2] == ["none", "3", "53.00 ± 3.61", "", "2.50", "0.20", "200", "3"]
    difference = "+2.00 [-10.71, +14.71]"
    assert lines[3] == ["OCR", "2", "55.50 ± 3.54", difference, "2.50", "0.20", "200", "3"]
    assert lines[4] == ["PPM", "0", "", "", "", "", "", ""]
    report = study_report(rows, study.metrics)
    assert "2 pairs: ± 9.0 standard deviations" in report and "3 pairs" not in report
    table = metric_gains_table(rows, study.metrics)
    assert table in report and cells(table)[::2] == [
        ["gain of", "sem_seg/mIoU"],
        ["OCR", difference],
    ]

    # A metric that is undefined in one run counts in the others; and older records have no cost.
    undefined = summarise(study, [*records[:4], run_record("OCR", 3, None)])[1]
    assert undefined.means[metric] == (53.0, None)
    assert undefined.gains[metric] == Interval(3.0, None, 1)
    older = [{k: v for k, v in r.items() if k != "cpu_seconds"} for r in records]
    assert summarise(study, older)[0].costs[2] is None

    (line, _) = study_curves(study, records).axes[0].lines
    assert line.get_xydata().tolist() == [[10.0, 53.0]]
