"""A study end to end on tiny data, and its summary by hand."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from other_process import lock_held
from scripts import load_script
from tiny_runs import ROOT, SEMANTIC_CONFIG, TINY_SEMANTIC

from ocr_panoptic.analysis.study import add_records, read_records, run_study, summarise
from ocr_panoptic.analysis.study_file import Study, read_study
from ocr_panoptic.visualization import study_curves, study_table

TRAIN_NET = ROOT / "train_net.py"
TINY = [
    *("SOLVER.MAX_ITER", 6, "SOLVER.IMS_PER_BATCH", 2, "TEST.EVAL_PERIOD", 3),
    *("DATALOADER.NUM_WORKERS", 0, "MODEL.DEVICE", "cpu", "SOLVER.CHECKPOINT_PERIOD", 3),
]


@pytest.fixture
def study_file(tmp_path) -> Path:
    content = {
        "config": str(SEMANTIC_CONFIG),
        "opts": [*TINY_SEMANTIC, *TINY],
        "seeds": [3],
        "baseline": "none",
        "metrics": ["sem_seg/mIoU", "sem_seg/pACC"],
        "systems": {"none": {"opts": ["MODEL.CONTEXT.NAME", "none"]}, "OCR": None},
    }
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.mark.slow
def test_end_to_end_and_again(tiny_data, study_file, tmp_path):
    study, output = read_study(study_file), tmp_path / "out"
    run_study(study, TRAIN_NET, sys.executable, output)
    records = read_records(study, output)
    assert [(r["system"], r["seed"]) for r in records] == [("none", 3), ("OCR", 3)]
    for record in records:
        assert record["run"]["seed"] == record["seed"]
        assert str(tmp_path) not in json.dumps(record)  # results are published
        curve = record["curves"]["sem_seg/mIoU"]
        assert [iteration for iteration, _ in curve] == [3, 6]
        assert curve[-1][1] == record["metrics"]["sem_seg/mIoU"]
        assert 2**27 < record["peak_memory_bytes"] < 2**35
        assert 0 < record["seconds_per_iteration"] < record["wall_seconds"]
        assert 1 < record["cpu_seconds"] < 2 * record["wall_seconds"]  # it imports PyTorch
    assert records[1]["parameters"] > records[0]["parameters"]
    table = study_table(summarise(study, records), study.metrics)
    assert table.count("\n") == 3
    study_curves(records, "sem_seg/mIoU").savefig(tmp_path / "curves.png")

    # Finished on another machine: nothing is trained.
    results = tmp_path / "results.json"
    results.write_text(json.dumps([*records, {**records[0], "seed": 9}]))
    assert add_records(study, tmp_path / "other", results) == 2
    assert read_records(study, tmp_path / "other") == records
    assert add_records(study, tmp_path / "other", results) == 0
    run_study(study, tmp_path / "absent.py", sys.executable, tmp_path / "other")
    results.write_text(json.dumps([{**records[1], "opts": ["SOLVER.MAX_ITER", "9"]}]))
    with pytest.raises(ValueError, match="OCR, seed 3 was trained with .* SOLVER.MAX_ITER 9; the"):
        add_records(study, tmp_path / "third", results)
    results.write_text(json.dumps([records[0], {**records[1], "metrics": {}, "curves": {}}]))
    with pytest.raises(ValueError, match="OCR, seed 3 has no sem_seg/mIoU, sem_seg/pACC"):
        add_records(study, tmp_path / "third", results)
    for text in ("{", '[{"seed": 3}]', "[3]"):
        results.write_text(text)
        with pytest.raises(ValueError, match="no results of tools/study.py"):
            add_records(study, tmp_path / "third", results)
    assert not (tmp_path / "third").exists()
    with pytest.raises(FileNotFoundError, match="no such results"):
        add_records(study, tmp_path / "third", tmp_path / "absent.json")

    # One run was interrupted behind its last iteration; the other is left alone.
    record = output / "OCR/seed3/study_run.json"
    untouched = (output / "none/seed3/metrics.json").read_bytes()
    record.unlink()
    assert len(read_records(study, output)) == 1
    run_study(study, TRAIN_NET, sys.executable, output)
    again = json.loads(record.read_text())
    assert again["resumed"]
    assert again["metrics"] == records[1]["metrics"]
    assert (output / "none/seed3/metrics.json").read_bytes() == untouched


def test_a_failing_run_names_its_log(study_file, tmp_path):
    study = read_study(study_file)
    with pytest.raises(
        ChildProcessError,
        match=r"none, seed 3 failed with exit code 2; see (.|\n)*\nIts last line: .*can't open",
    ):
        run_study(study, tmp_path / "absent.py", sys.executable, tmp_path / "out")
    assert read_records(study, tmp_path / "out") == []


def test_runs_of_another_process_are_left_to_it(study_file, tmp_path, capsys):
    study, output = read_study(study_file), tmp_path / "out"
    (output / "none/seed3").mkdir(parents=True)
    with lock_held(output / "none/seed3/study_run.lock"), pytest.raises(ChildProcessError):
        run_study(study, tmp_path / "absent.py", sys.executable, output)
    assert "none, seed 3: another process trains it\nOCR, seed 3: " in capsys.readouterr().out
    assert not (output / "none/seed3/study_log.txt").exists()
    assert (output / "OCR/seed3/study_log.txt").exists()


@pytest.mark.slow
def test_a_metric_that_does_not_exist_shows_after_the_first_run(tiny_data, study_file, tmp_path):
    content = yaml.safe_load(study_file.read_text())
    study_file.write_text(yaml.safe_dump({**content, "metrics": ["sem_seg/mIou"]}))
    study = read_study(study_file)
    with pytest.raises(ValueError, match="no metric sem_seg/mIou; the evaluation has sem_seg/mIoU"):
        run_study(study, TRAIN_NET, sys.executable, tmp_path / "out")


def record(system: str, seed: int, value: float | None, curve: list) -> dict:
    return {
        "system": system,
        "seed": seed,
        "metrics": {"sem_seg/mIoU": value},
        "curves": {"sem_seg/mIoU": curve},
        "parameters": 2_500_000,
        "seconds_per_iteration": seed / 10,
        "peak_memory_bytes": seed * 2**20,
    }


def test_summary_by_hand():
    config = (Path("a.yaml"), ())
    systems = {"none": config, "OCR": config, "PPM": config}
    study = Study(systems, (1, 2, 3), "none", ("sem_seg/mIoU",))
    records = [record("none", s, v, [[10, v]]) for s, v in ((1, 50.0), (2, 52.0), (3, 57.0))]
    records += [record("OCR", s, v, [[10, v]]) for s, v in ((1, 53.0), (3, 58.0))]
    none, ocr, ppm = summarise(study, records)
    assert none["sem_seg/mIoU"] == pytest.approx((53.0, 13**0.5))
    assert none["sem_seg/mIoU - baseline"] == (None, None)
    assert ocr["sem_seg/mIoU"] == pytest.approx((55.5, 12.5**0.5))
    # Paired: 3 with seed 1 and 1 with seed 3; the mean of all seeds would give 2.5.
    assert ocr["sem_seg/mIoU - baseline"] == pytest.approx((2.0, 2**0.5))
    assert (ocr["runs"], ocr["seconds_per_iteration"]) == (2, 0.2)
    assert ocr["peak_memory_bytes"] == 3 * 2**20
    assert ppm["runs"] == 0 and ppm["sem_seg/mIoU"] == (None, None)

    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in study_table([none, ocr, ppm], study.metrics).splitlines()
    ]
    assert lines[2] == ["none", "3", "53.00 ± 3.61", "", "2.50", "0.20", "3"]
    assert lines[3] == ["OCR", "2", "55.50 ± 3.54", "+2.00 ± 1.41", "2.50", "0.20", "3"]
    assert lines[4] == ["PPM", "0", "", "", "", "", ""]

    # A metric that is undefined in one run counts in the others.
    undefined = summarise(study, [*records[:4], record("OCR", 3, None, [])])[1]
    assert undefined["sem_seg/mIoU"] == (53.0, None)
    assert undefined["sem_seg/mIoU - baseline"] == (3.0, None)

    (line, _) = study_curves(records, "sem_seg/mIoU").axes[0].lines
    assert line.get_xydata().tolist() == [[10.0, 53.0]]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"seed": [1]}, "expected the keys .*; found .*"),
        ({"baseline": "PPM"}, "the baseline 'PPM' is none of"),
        ({"baseline": ["none"]}, r"the baseline \['none'\] is none of"),
        ({"systems": {"none": {"opt": []}}}, "none has .*'opt'.*; it may have config and opts"),
        ({"systems": {"none": "a.yaml"}}, "none has 'a.yaml'; it may have"),
        ({"systems": ["none"]}, r"systems is \['none'\]; expected lines NAME"),
        ({"seeds": 3}, r"seeds is 3; expected a list, such as \[3\]"),
        ({"seeds": [1, 1]}, r"seeds is \[1, 1\]; expected different integers"),
        ({"seeds": [-1]}, "expected different integers from 0 on"),
        ({"seeds": []}, "expected different integers"),
        ({"metrics": "sem_seg/mIoU"}, "metrics is 'sem_seg/mIoU'; expected a list"),
        ({"metrics": [3]}, r"metrics is \[3\]; expected names such as"),
        ({"opts": {"SEED": 1}}, "opts is .*; expected a list"),
        ({"opts": ["NO.KEY", 1], "systems": {"none": None}}, "none: Unknown config key NO.KEY"),
        ({"config": ["a"]}, r"has the config \['a'\], which is no file name"),
    ],
)
def test_faults(study_file, change, message):
    content = {**yaml.safe_load(study_file.read_text()), **change}
    study_file.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match=message):
        read_study(study_file)


@pytest.mark.parametrize(
    "name", ["../other", "/tmp/other", "..", ".", "", "a\nb", "a\0b", 1, "é" * 101]
)
def test_a_system_stays_in_its_folder(study_file, name):
    content = yaml.safe_load(study_file.read_text())
    study_file.write_text(yaml.safe_dump({**content, "systems": {name: None}, "baseline": name}))
    with pytest.raises(ValueError, match="get a folder of its name: use up to 100 letters"):
        read_study(study_file)


@pytest.mark.parametrize(
    "text, message",
    [
        ("config: [", "is not valid YAML"),
        ("config:\t- a", "not valid YAML"),
        ("? [a]\n: b", "not valid YAML"),
        pytest.param("[" * 9999, "nested too deeply", id="deep"),
        ("!!python/object/apply:os.abort []", "not valid YAML"),
        ("", "found None"),
        pytest.param("a: " + "x" * 2**20, "has more than 1 MiB", id="large"),
        ("- a", r"found \['a'\]"),
        ("1: 2", r"found \[1\]"),
        ("a: &a [*a]", "refers to itself"),
    ],
)
def test_a_file_that_is_no_study(study_file, text, message):
    study_file.write_text(text)
    with pytest.raises(ValueError, match=f"study.yaml.*{message}") as error:
        read_study(study_file)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize(
    "text", ["{", "[1]", '[{"system": "none", "seed": 3}]', '"a"', "[" * 9999], ids=range(5)
)
def test_records_of_something_else(study_file, tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ValueError, match="results.json: no results of tools/study.py"):
        add_records(read_study(study_file), tmp_path, tmp_path / "results.json")


def test_the_command_without_any_finished_run(study_file, tmp_path):
    output = tmp_path / "out"
    main = load_script("tools/study.py").main
    with pytest.raises(SystemExit, match=f"{output}: no finished run of {study_file}"):
        main([str(study_file), "--output", str(output), "--report-only"])


def test_missing_files(study_file, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such study"):
        read_study(tmp_path / "absent.yaml")
    study_file.write_text(study_file.read_text().replace("semantic_ocr_R_18", "absent"))
    with pytest.raises(FileNotFoundError, match="names the config .*absent_scenes.yaml"):
        read_study(study_file)


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.yaml")), ids=lambda p: p.stem)
def test_studies_of_the_repository(path):
    """Every system is another one, and its config takes its overrides."""
    from ocr_panoptic.engine import load_config

    study = read_study(path)
    systems = {load_config(str(c), list(opts)).dump() for c, opts in study.systems.values()}
    assert len(systems) == len(study.systems)
    assert len(study.seeds) >= 3
