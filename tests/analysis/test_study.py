"""A study end to end on tiny data, and its summary by hand."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from other_process import lock_held
from scripts import load_script
from tiny_runs import ROOT, SEMANTIC_CONFIG, TINY_SEMANTIC

from ocr_panoptic.analysis.study import add_records, read_records, run_study
from ocr_panoptic.analysis.study_file import Study, System, read_study
from ocr_panoptic.analysis.study_summary import class_metric_names, summarise
from ocr_panoptic.intervals import Interval
from ocr_panoptic.visualization import gain_figure, study_curves, study_report
from ocr_panoptic.visualization.study_tables import (
    class_gains_table,
    gains_table,
    metric_gains_table,
    study_table,
)

TRAIN = [sys.executable, str(ROOT / "train_net.py")]
ABSENT = [sys.executable, "absent.py"]
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
    run_study(study, TRAIN, output)
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
        assert record["seconds_per_iteration"] < record["cpu_seconds"]
    assert records[1]["parameters"] > records[0]["parameters"]
    rows = summarise(study, records)
    assert study_table(rows, study.metrics).count("\n") == 3
    study_curves(rows, records, "sem_seg/mIoU").savefig(tmp_path / "curves.png")

    # Finished on another machine: nothing is trained.
    results = tmp_path / "results.json"
    results.write_text(json.dumps([*records, {**records[0], "seed": 9}]))
    assert add_records(study, tmp_path / "other", results) == 2
    assert read_records(study, tmp_path / "other") == records
    assert add_records(study, tmp_path / "other", results) == 0
    *opts, key, value = records[1]["opts"]  # the same in another order
    results.write_text(json.dumps([{**records[1], "opts": [key, value, *opts]}]))
    assert add_records(study, tmp_path / "reordered", results) == 1
    run_study(study, ABSENT, tmp_path / "other")
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
    run_study(study, TRAIN, output)
    again = json.loads(record.read_text())
    assert again["resumed"]
    assert again["metrics"] == records[1]["metrics"]
    assert (output / "none/seed3/metrics.json").read_bytes() == untouched


def test_runs_of_a_study_that_has_changed_since_are_refused(study_file, tmp_path):
    study, output = read_study(study_file), tmp_path / "out"
    opts = [*study.systems["OCR"].opts, "SEED", "3"]
    record = {"config": SEMANTIC_CONFIG.name, "opts": opts, "metrics": {}}
    (output / "OCR/seed3").mkdir(parents=True)
    (output / "OCR/seed3/study_run.json").write_text(json.dumps(record))
    assert read_records(study, output) == [record]
    content = yaml.safe_load(study_file.read_text())
    content["opts"] += ["SOLVER.MAX_ITER", 7]
    study_file.write_text(yaml.safe_dump(content))
    changed = read_study(study_file)
    message = r"study_run.json: OCR, seed 3 was trained with .*.yaml SOLVER.MAX_ITER 6; .* 7"
    for use in (
        lambda: read_records(changed, output),
        lambda: run_study(changed, ABSENT, output),
    ):
        with pytest.raises(ValueError, match=message):
            use()


def test_a_failing_run_names_its_log(study_file, tmp_path):
    study = read_study(study_file)
    with pytest.raises(
        ChildProcessError,
        match=r"none, seed 3 failed with exit code 2; see (.|\n)*\nIts last line: .*can't open",
    ):
        run_study(study, ABSENT, tmp_path / "out")
    assert read_records(study, tmp_path / "out") == []


def test_runs_of_another_process_are_left_to_it(study_file, tmp_path, capsys):
    study, output = read_study(study_file), tmp_path / "out"
    (output / "none/seed3").mkdir(parents=True)
    with lock_held(output / "none/seed3/study_run.lock"), pytest.raises(ChildProcessError):
        run_study(study, ABSENT, output)
    assert "none, seed 3: another process trains it\nOCR, seed 3: " in capsys.readouterr().out
    assert not (output / "none/seed3/study_log.txt").exists()
    assert (output / "OCR/seed3/study_log.txt").exists()


@pytest.mark.slow
def test_a_metric_that_does_not_exist_shows_after_the_first_run(tiny_data, study_file, tmp_path):
    content = yaml.safe_load(study_file.read_text())
    study_file.write_text(yaml.safe_dump({**content, "metrics": ["sem_seg/mIou"]}))
    study = read_study(study_file)
    with pytest.raises(ValueError, match="no metric sem_seg/mIou; the evaluation has sem_seg/mIoU"):
        run_study(study, TRAIN, tmp_path / "out")


def record(system: str, seed: int, value: float | None, curve: list = (), **classes) -> dict:
    return {
        "system": system,
        "seed": seed,
        "metrics": {"sem_seg/mIoU": value, **{f"sem_seg/IoU-{c}": v for c, v in classes.items()}},
        "curves": {"sem_seg/mIoU": curve},
        "parameters": 2_500_000,
        "seconds_per_iteration": seed / 10,
        "cpu_seconds": 100 * seed,
        "peak_memory_bytes": seed * 2**20,
    }


def study_of(*schemes: str, places: tuple[str, ...] = ("",)) -> Study:
    """The first one is the baseline."""
    names = {(s, p): f"{s} at {p}" if p else s for p in places for s in schemes}
    systems = {
        name: System(Path("a.yaml"), (), (1, 2, 3), scheme, place, names[schemes[0], place])
        for (scheme, place), name in names.items()
    }
    return Study(systems, ("sem_seg/mIoU",))


def cells(table: str) -> list[list[str]]:
    return [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()]


def test_summary_by_hand():
    study = study_of("none", "OCR", "PPM")
    records = [record("none", s, v, [[10, v]]) for s, v in ((1, 50.0), (2, 52.0), (3, 57.0))]
    records += [record("OCR", s, v, [[10, v]]) for s, v in ((1, 53.0), (3, 58.0))]
    rows = none, ocr, ppm = summarise(study, records)
    assert none["sem_seg/mIoU"] == pytest.approx((53.0, 13**0.5))
    assert none["sem_seg/mIoU - baseline"] is None
    assert ocr["sem_seg/mIoU"] == pytest.approx((55.5, 12.5**0.5))
    # Paired: 3 with seed 1 and 1 with seed 3; the mean of all seeds would give 2.5. Two pairs
    # have a deviation of 2 ** 0.5, an error of 1 and one degree of freedom.
    assert ocr["sem_seg/mIoU - baseline"] == Interval(2.0, pytest.approx(12.706, abs=1e-3), 2)
    assert (ocr["runs"], ocr["seconds_per_iteration"], ocr["cpu_seconds"]) == (2, 0.2, 200)
    assert ocr["peak_memory_bytes"] == 3 * 2**20
    assert ppm["runs"] == 0 and ppm["sem_seg/mIoU"] == (None, None)

    lines = cells(study_table(rows, study.metrics))
    assert lines[2] == ["none", "3", "53.00 ± 3.61", "", "2.50", "0.20", "200", "3"]
    difference = "+2.00 [-10.71, +14.71]"
    assert lines[3] == ["OCR", "2", "55.50 ± 3.54", difference, "2.50", "0.20", "200", "3"]
    assert lines[4] == ["PPM", "0", "", "", "", "", "", ""]
    report = study_report(rows, study.metrics, {})
    assert "2 pairs: ± 9.0 standard deviations" in report and "3 pairs" not in report
    table = metric_gains_table(rows, study.metrics)
    assert table in report and cells(table)[::2] == [
        ["gain of", "sem_seg/mIoU"],
        ["OCR", difference],
    ]

    # A metric that is undefined in one run counts in the others; and older records have no cost.
    undefined = summarise(study, [*records[:4], record("OCR", 3, None)])[1]
    assert undefined["sem_seg/mIoU"] == (53.0, None)
    assert undefined["sem_seg/mIoU - baseline"] == Interval(3.0, None, 1)
    older = [{k: v for k, v in r.items() if k != "cpu_seconds"} for r in records]
    assert summarise(study, older)[0]["cpu_seconds"] is None

    (line, _) = study_curves(rows, records, "sem_seg/mIoU").axes[0].lines
    assert line.get_xydata().tolist() == [[10.0, 53.0]]


@pytest.fixture
def placed() -> tuple[Study, list[dict]]:
    """Gains of 2, 3, 4 at a and of 0, 1, -1 at b: the interval of three values of deviation 1 is
    4.303 / 3 ** 0.5 = 2.48 to both sides."""
    study = study_of("none", "OCR", places=("a", "b"))
    records = []
    for seed in (1, 2, 3):
        records += [record("none at a", seed, 10.0 * seed, sky=1.0, road=5.0)]
        records += [record("OCR at a", seed, 10.0 * seed + seed + 1, sky=1.0 + seed, road=4.0)]
        records += [record("none at b", seed, 50.0, sky=3.0, road=7.0)]
        records += [record("OCR at b", seed, 50.0 + (0, 1, -1)[seed - 1], sky=3.0, road=6.0)]
    return study, records


def test_gains_at_each_place(placed):
    study, records = placed
    classes = class_metric_names(study, records)
    assert classes == {"sky": "sem_seg/IoU-sky", "road": "sem_seg/IoU-road"}
    rows = summarise(study, records, [*study.metrics, *classes.values()])
    lines = cells(gains_table(rows, "sem_seg/mIoU"))
    assert lines[0] == ["sem_seg/mIoU", "a", "b"]
    assert lines[2] == ["none", "20.00 ± 10.00", "50.00 ± 0.00"]
    assert lines[3] == ["OCR", "**+3.00** [+0.52, +5.48]", "+0.00 [-2.48, +2.48]"]
    # Each class by itself: sky gains 1, 2, 3 at a, which the interval does not tell from 0.
    lines = cells(class_gains_table(rows, classes))
    assert lines[0] == ["class", "OCR at a", "OCR at b"]
    assert lines[2] == ["sky", "+2.00 [-0.48, +4.48]", "+0.00 [+0.00, +0.00]"]
    assert lines[3] == ["road", "**-1.00** [-1.00, -1.00]", "**-1.00** [-1.00, -1.00]"]
    report = study_report(rows, study.metrics, classes)
    for table in (gains_table(rows, "sem_seg/mIoU"), class_gains_table(rows, classes)):
        assert table in report


def test_gains_over_the_receptive_field(placed):
    study, records = placed
    fields = {"a": {"effective_share": 0.25}, "b": {"effective_share": 0.1}}
    (panel,) = gain_figure(summarise(study, records), "sem_seg/mIoU", fields).axes
    assert panel.get_title() == "OCR"  # the baseline has none
    points = panel.collections[-1]
    assert points.get_offsets().tolist() == [[10.0, 0.0], [25.0, 3.0]]
    white, filled = points.get_facecolors()
    assert white.tolist() == [1, 1, 1, 1] and filled.tolist() != [1, 1, 1, 1]
    ((bottom, top),) = [
        path.vertices[:, 1] for path in panel.collections[0].get_paths() if path.vertices[0, 0] > 20
    ]
    assert (bottom, top) == pytest.approx((0.52, 5.48), abs=5e-3)


@pytest.mark.parametrize(
    "first, second, order, tops",
    [
        (9.0, 4.0, ["OCR", "PPM", "GT-OCR"], [16 / 3, 16 / 3, 12]),
        (9.0, 4.5, ["GT-OCR", "OCR", "PPM"], [12, 12, 12]),  # half as much
        (-9.0, 4.0, ["GT-OCR", "OCR", "PPM"], [25 / 3] * 3),  # a loss is none
    ],
)
def test_a_scheme_that_gains_far_more_has_a_scale_of_its_own(first, second, order, tops):
    gains = {"none": 0.0, "GT-OCR": first, "OCR": 3.0, "PPM": second}
    records = [record(name, seed, 50 + gain) for name, gain in gains.items() for seed in (1, 2, 3)]
    rows = [{**row, "place": "a"} for row in summarise(study_of(*gains), records)]
    panels = gain_figure(rows, "sem_seg/mIoU", {"a": {"effective_share": 0.25}}).axes
    assert [panel.get_title() for panel in panels] == order
    assert [panel.get_ylim()[1] for panel in panels] == pytest.approx(tops)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"seed": [1]}, "expected the keys .*; found .*"),
        ({"baseline": "PPM"}, "the baseline 'PPM' is none of"),
        ({"baseline": ["none"]}, r"the baseline \['none'\] is none of"),
        (
            {"systems": {"none": {"opt": []}}},
            "none of systems has .*'opt'.*; it may have config, o",
        ),
        ({"systems": {"none": "a.yaml"}}, "none of systems has 'a.yaml'; it may have"),
        (
            {"systems": ["none"]},
            r"systems is \['none'\]; expected lines NAME: {config: ..., opts: ",
        ),
        ({"systems": {}}, r"systems is {}; expected lines NAME"),
        (
            {"systems": {"none": {"seeds": [0, 0]}}},
            r"seeds of none is \[0, 0\]; expected different",
        ),
        ({"at": ["layer3"]}, r"at is \['layer3'\]; expected lines NAME: {opts: ...}"),
        ({"at": {"layer3": {"seeds": [1]}}}, "layer3 of at has .*'seeds'.*; it may have opts"),
        ({"at": {3: {}}}, "the runs of the system .* at 3. get a folder"),
        ({"at": {"a": {}, "a at a": {}}, "systems": {"none": {}, "none at a": {}}}, "two systems"),
        ({"seeds": 3}, r"seeds is 3; expected a list, such as \[3\]"),
        ({"seeds": [1, 1]}, r"seeds of .* is \[1, 1\]; expected different integers"),
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


def test_systems_at_places(study_file):
    """Each scheme at each place, against the baseline there, with all three overrides in turn."""
    content = yaml.safe_load(study_file.read_text())
    content["systems"]["OCR"] = {"seeds": [3, 4], "opts": ["SOLVER.MAX_ITER", 7]}
    content["at"] = {"fast": {"opts": ["SOLVER.BASE_LR", 0.5]}, "slow": None}
    study_file.write_text(yaml.safe_dump(content, sort_keys=False))
    study = read_study(study_file)
    assert list(study.systems) == ["none at fast", "OCR at fast", "none at slow", "OCR at slow"]
    system = study.systems["OCR at fast"]
    assert system.opts[-4:] == ("SOLVER.MAX_ITER", "7", "SOLVER.BASE_LR", "0.5")
    assert (system.scheme, system.place, system.baseline) == ("OCR", "fast", "none at fast")
    assert (system.seeds, study.systems["none at slow"].seeds) == ((3, 4), (3,))
    assert study.systems["none at slow"].baseline == "none at slow"
    assert study.seeds == (3, 4)
    other = read_study(study_file, "OCR").systems
    assert {name: s.baseline for name, s in other.items()} == {
        "none at fast": "OCR at fast",
        "OCR at fast": "OCR at fast",
        "none at slow": "OCR at slow",
        "OCR at slow": "OCR at slow",
    }
    with pytest.raises(ValueError, match="study.yaml: the baseline 'PPM' is none of"):
        read_study(study_file, "PPM")


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


def finished(study_file: Path, output: Path, name: str, value: float) -> None:
    """A run with seed 3 of a system, as a study leaves it."""
    system = read_study(study_file).systems[name]
    run = {"config": system.config.name, "opts": [*system.opts, "SEED", "3"]}
    run = {**record(name, 3, value, [[6, value]]), **run}
    run["metrics"]["sem_seg/pACC"] = 20.0
    (output / name / "seed3").mkdir(parents=True)
    (output / name / "seed3/study_run.json").write_text(json.dumps(run))


def test_the_command_while_there_are_no_gains_to_draw(study_file, tmp_path, capsys):
    """Of runs of the baseline alone; a study without places has none at all."""
    output, fields = tmp_path / "out", tmp_path / "fields.json"
    fields.write_text(json.dumps([{"feature": "layer3", "effective_share": 0.5}]))
    main = load_script("tools/study.py").main
    arguments = [str(study_file), "--output", str(output), "--fields", str(fields), "--report-only"]
    with pytest.raises(SystemExit):
        main(arguments)
    assert "has no places (at)" in capsys.readouterr().err
    content = {**yaml.safe_load(study_file.read_text()), "at": {"layer3": None}}
    study_file.write_text(yaml.safe_dump(content, sort_keys=False))
    finished(study_file, output, "none at layer3", 10.0)
    main(arguments)
    assert "Wrote tables.md, results.json and figures to" in capsys.readouterr().out
    finished(study_file, output, "OCR at layer3", 13.0)
    before = {file: file.stat().st_mtime_ns for file in output.rglob("*")}
    main([*arguments[:-1], "--baseline", "OCR"])  # neither trains nor writes
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["|", "none", "|", "-3.00", "|"] in lines and ["|", "OCR", "|", "13.00", "|"] in lines
    assert before == {file: file.stat().st_mtime_ns for file in output.rglob("*")}


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
    trained = {
        (load_config(str(s.config), list(s.opts)).dump(), s.trial) for s in study.systems.values()
    }
    assert len(trained) == len(study.systems)
    for system in study.systems.values():
        assert len(system.seeds) >= 3
        # Differences are paired by seed.
        assert {*system.seeds} <= {*study.systems[system.baseline].seeds}
