"""A study from end to end on tiny data."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from filelock import FileLock

from ocr_panoptic.formats.run_folder import read_training_log
from ocr_panoptic.workbench.comparing.study import Study, System, read_runs, run_study
from support.forked import Forked
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
        "none": System(SEMANTIC_CONFIG, (*opts, "MODEL.CONTEXT.NAME", "none"), (3,)),
        "OCR": System(SEMANTIC_CONFIG, opts, (3,)),
    }
    return Study(systems, ("sem_seg/mIoU", "sem_seg/pACC"))


@pytest.fixture
def forked(monkeypatch):
    forks = SimpleNamespace(Popen=Forked, STDOUT=subprocess.STDOUT)
    monkeypatch.setattr("ocr_panoptic.workbench.comparing.study.subprocess", forks)


@pytest.mark.slow
def test_end_to_end_and_again(tiny_data, study, tmp_path, forked):
    output, length = tmp_path / "out", ("SOLVER.MAX_ITER", "0", "SOLVER.EPOCHS", "1.5")  # 6
    longer = {n: replace(s, opts=(*s.opts, *length)) for n, s in study.systems.items()}
    study = replace(study, systems=longer)
    run_study(study, TRAIN, output)
    records = read_runs(study, output)
    assert [(r["system"], r["seed"]) for r in records] == [("none", 3), ("OCR", 3)]
    for record in records:
        assert record["run"]["seed"] == record["seed"]
        assert str(tmp_path) not in json.dumps(record)  # results are published
        rows = read_training_log(output / record["system"] / "seed3")
        curve = {row["iteration"]: row["sem_seg/mIoU"] for row in rows if "sem_seg/mIoU" in row}
        assert [*curve] == [2, 6]  # counted from 0; the last evaluation is logged at MAX_ITER
        assert curve[6] == record["metrics"]["sem_seg/mIoU"]
        assert 2**27 < record["peak_memory_bytes"] < 2**35
        assert 0 < record["seconds_per_iteration"] < record["wall_seconds"]
        assert record["cpu_seconds"] > 0
    assert records[1]["parameters"] > records[0]["parameters"]

    # One run was interrupted after its last iteration; the other is unchanged.
    record = output / "OCR/seed3/study_run.json"
    untouched = (output / "none/seed3/metrics.json").read_bytes()
    record.unlink()
    assert len(read_runs(study, output)) == 1
    run_study(study, TRAIN, output)
    again = json.loads(record.read_text())
    assert again["resumed"]
    assert again["metrics"] == records[1]["metrics"]
    assert (output / "none/seed3/metrics.json").read_bytes() == untouched


def test_runs_of_a_changed_study_are_refused(study, tmp_path):
    output, (config, opts) = tmp_path / "out", study.systems["OCR"].settings(3).values()
    record, system = {"config": config, "opts": opts, "metrics": {}}, study.systems["OCR"]
    (output / "OCR/seed3").mkdir(parents=True)
    (output / "OCR/seed3/study_run.json").write_text(json.dumps(record))
    assert read_runs(study, output) == [record]
    longer = replace(system, opts=(*system.opts, "SOLVER.MAX_ITER", "7"))
    changed = replace(study, systems={**study.systems, "OCR": longer})
    message = r"study_run.json: OCR, seed 3 was trained with SOLVER.MAX_ITER 6, .*MAX_ITER 7"
    for use in (lambda: read_runs(changed, output), lambda: run_study(changed, ABSENT, output)):
        with pytest.raises(ValueError, match=message):
            use()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "before, after",
    [
        ("signal.signal(n, signal.SIG_DFL)", "time.sleep(60)"),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, {n})", "signal.sigwait({n})"),
    ],
)
def test_a_signal_also_ends_the_training(study, tmp_path, capsys, number, before, after):
    """The child signals its parent, which passes the signal on and trains no further system."""
    child = "import os, signal, time", f"n = {number:d}", before, "os.kill(os.getppid(), n)", after
    with pytest.raises(SystemExit) as end:
        run_study(study, [sys.executable, "-c", "\n".join(child)], tmp_path)
    assert end.value.code == 128 + number and not (tmp_path / "OCR").exists()
    assert f"none, seed 3: stopped by {number.name}. Repeat" in capsys.readouterr().out


def test_a_failing_run_names_its_log_and_its_command(study, tmp_path):
    message = r"none, seed 3 failed with exit code 2; see .*absent\.py --config-file"
    with pytest.raises(ValueError, match=message):
        run_study(study, ABSENT, tmp_path)
    assert "can't open" in (tmp_path / "none/seed3/study_log.txt").read_text()
    assert read_runs(study, tmp_path) == []


def test_runs_of_another_process_are_skipped(study, tmp_path, capsys):
    output = tmp_path / "out"
    (output / "none/seed3").mkdir(parents=True)
    with FileLock(output / "none/seed3/study_run.lock"), pytest.raises(ValueError, match="OCR, se"):
        run_study(study, ABSENT, output)
    assert (
        "none, seed 3: another process is training this run\nOCR, seed 3: "
        in capsys.readouterr().out
    )
    assert not (output / "none/seed3/study_log.txt").exists()
    assert (output / "OCR/seed3/study_log.txt").exists()


@pytest.mark.slow
def test_a_missing_metric_is_reported_after_the_first_run(tiny_data, study, tmp_path, forked):
    study = replace(study, metrics=("sem_seg/mIou",))
    with pytest.raises(ValueError, match="the evaluation lacks sem_seg/mIou; it has sem_seg/mIoU"):
        run_study(study, TRAIN, tmp_path / "out")


@pytest.mark.parametrize("name", ["../../evil", "/evil", ""])
def test_names_of_systems_stay_inside_the_output(name):
    with pytest.raises(ValueError, match=f"system '{name}': .*, but the name must"):
        Study({name: System(SEMANTIC_CONFIG, (), (0,))}, ())
