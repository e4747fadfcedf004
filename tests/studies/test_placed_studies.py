"""Studies of places: files, tables and figures."""

import json
from pathlib import Path

import pytest
import yaml

from ocr_panoptic.workbench.comparing.intervals import Interval
from ocr_panoptic.workbench.comparing.study import read_runs
from studies.figures import gain_figure, placed_curves
from studies.records import add_records
from studies.run import main
from studies.study_file import PlacedStudy, PlacedSystem, overridden, read_study
from studies.study_tables import class_gains_table, metric_gains_table, study_table, summarise
from studies.tables import gains_table, placed_report
from support.study_records import cells, repository_study, run_record
from support.tiny_runs import ROOT, SEMANTIC_CONFIG


@pytest.fixture
def study_file(tmp_path) -> Path:
    content = {
        "config": str(SEMANTIC_CONFIG),
        "opts": ["SOLVER.MAX_ITER", 6],
        "seeds": [3],
        "baseline": "none",
        "metrics": ["sem_seg/mIoU", "sem_seg/pACC"],
        "systems": {"none": {"opts": ["MODEL.CONTEXT.NAME", "none"]}, "OCR": None},
    }
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def test_systems_at_places(study_file):
    """Each scheme at each place, and its baseline, has all three overrides in turn."""
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
    "change, message",
    [
        ({"seed": [1]}, "expected the keys .*; found .*"),
        (
            {"systems": {"none": {"opt": []}}},
            r"none of systems has \['opt'\]; it may have config, o",
        ),
        ({"at": {"layer3": {"seeds": [1]}}}, r"layer3 of at has \['seeds'\]; it may have opts"),
        ({"opts": ["NO.KEY", 1]}, "OCR: Unknown config key NO.KEY"),
    ],
)
def test_faults(study_file, change, message):
    content = {**yaml.safe_load(study_file.read_text()), **change}
    study_file.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match=f"study.yaml: {message}"):
        read_study(study_file)


def test_finished_runs_of_another_machine(study_file, tmp_path):
    """Runs are joined in any order if they have the study's settings and metrics."""
    study, output, results = read_study(study_file), tmp_path / "out", tmp_path / "results.json"
    records = [
        {
            **{"system": name, "seed": 3, **study.systems[name].settings(3)},
            **{"metrics": {"sem_seg/mIoU": 1.0, "sem_seg/pACC": 2.0}, "curves": {}},
        }
        for name in ("none", "OCR")
    ]
    results.write_text(json.dumps([*records, {**records[0], "seed": 9}]))
    assert add_records(study, output, results) == 2
    assert read_runs(study, output) == records
    assert add_records(study, output, results) == 0
    *opts, key, value = records[1]["opts"]
    results.write_text(json.dumps([{**records[1], "opts": [key, value, *opts]}]))
    assert add_records(study, tmp_path / "reordered", results) == 1
    other = tmp_path / "other"
    for changed, message in (
        ({"opts": ["SOLVER.MAX_ITER", "9"]}, "OCR, seed 3 was trained with SOLVER.MAX_ITER 9;"),
        ({"trial": ["trials.py", "skip"]}, "OCR, seed 3 was trained with trial trials.py skip;"),
        ({"metrics": {}}, "OCR, seed 3 has no sem_seg/mIoU, sem_seg/pACC"),
    ):
        results.write_text(json.dumps([records[0], {**records[1], **changed}]))
        with pytest.raises(ValueError, match=message):
            add_records(study, other, results)
    for text in ("{", '[{"seed": 3}]', "[3]"):
        results.write_text(text)
        with pytest.raises(ValueError, match="no results of a study"):
            add_records(study, other, results)
    assert not other.exists()


def test_summary_by_hand():
    kinds = {"baseline": "none", "place": ""}
    systems = {
        name: PlacedSystem(Path("a.yaml"), (), (1, 2, 3), scheme=name, **kinds)
        for name in ("none", "OCR", "PPM")
    }
    study = PlacedStudy(systems, ("sem_seg/mIoU",))
    records = [run_record("none", s, v, [[10, v]]) for s, v in ((1, 50.0), (2, 52.0), (3, 57.0))]
    records += [run_record("OCR", s, v, [[10, v]]) for s, v in ((1, 53.0), (3, 58.0))]
    rows = none, ocr, ppm = summarise(study, records)
    (metric,) = study.metrics
    assert none.means[metric] == pytest.approx((53.0, 13**0.5))
    assert none.gains[metric] is None
    assert ocr.means[metric] == pytest.approx((55.5, 12.5**0.5))
    # Paired gains are 3 with seed 1 and 1 with seed 3; the mean over all seeds would give 2.5. Two
    # pairs have a deviation of 2 ** 0.5, an error of 1 and one degree of freedom.
    assert ocr.gains[metric] == Interval(2.0, pytest.approx(12.706, abs=1e-3), 2)
    assert (ocr.runs, ocr.costs) == (2, (2_500_000, 0.2, 200, 3 * 2**20))
    assert ppm.runs == 0 and ppm.means[metric] == (None, None)

    lines = cells(study_table(rows, study.metrics))
    assert lines[2] == ["none", "3", "53.00 ± 3.61", "", "2.50", "0.20", "200", "3"]
    difference = "+2.00 [-10.71, +14.71]"
    assert lines[3] == ["OCR", "2", "55.50 ± 3.54", difference, "2.50", "0.20", "200", "3"]
    assert lines[4] == ["PPM", "0", "", "", "", "", "", ""]
    report = placed_report(study, rows)
    assert "2 pairs: ± 9.0 standard deviations" in report and "3 pairs" not in report
    table = metric_gains_table(rows, study.metrics)
    assert table in report and cells(table)[::2] == [
        ["gain of", "sem_seg/mIoU"],
        ["OCR", difference],
    ]

    # If a metric is undefined in a run, the other runs count. Older records have no cost.
    undefined = summarise(study, [*records[:4], run_record("OCR", 3, None)])[1]
    assert undefined.means[metric] == (53.0, None)
    assert undefined.gains[metric] == Interval(3.0, None, 1)
    older = [{k: v for k, v in r.items() if k != "cpu_seconds"} for r in records]
    assert summarise(study, older)[0].costs[2] is None

    (line, _) = placed_curves(study, records).axes[0].lines
    assert line.get_xydata().tolist() == [[10.0, 53.0]]


@pytest.fixture
def placed() -> tuple[PlacedStudy, list[dict]]:
    """
    Return a study with gains of 2, 3, 4 at place a and of 0, 1, -1 at place b.

    The interval of three values with deviation 1 is 4.303 / 3 ** 0.5 = 2.48 to both sides.
    """
    systems = {
        f"{scheme} at {place}": PlacedSystem(
            Path("a.yaml"), (), (1, 2, 3), baseline=f"none at {place}", scheme=scheme, place=place
        )
        for place in ("a", "b")
        for scheme in ("none", "OCR")
    }
    study = PlacedStudy(systems, ("sem_seg/mIoU",))
    records = []
    for seed in (1, 2, 3):
        records += [run_record("none at a", seed, 10.0 * seed, sky=1.0, road=5.0)]
        records += [run_record("OCR at a", seed, 10.0 * seed + seed + 1, sky=1.0 + seed, road=4.0)]
        records += [run_record("none at b", seed, 50.0, sky=3.0, road=7.0)]
        records += [run_record("OCR at b", seed, 50.0 + (0, 1, -1)[seed - 1], sky=3.0, road=6.0)]
    return study, records


def test_gains_at_each_place(placed):
    study, records = placed
    rows = summarise(study, records)
    lines = cells(gains_table(study, rows, "sem_seg/mIoU"))
    assert lines[0] == ["sem_seg/mIoU", "a", "b"]
    assert lines[2] == ["none", "20.00 ± 10.00", "50.00 ± 0.00"]
    assert lines[3] == ["OCR", "**+3.00** [+0.52, +5.48]", "+0.00 [-2.48, +2.48]"]
    # Each class separately: sky gains 1, 2, 3 at a, whose interval includes 0.
    lines = cells(class_gains_table(rows))
    assert lines[0] == ["class", "OCR at a", "OCR at b"]
    assert lines[2] == ["sky", "+2.00 [-0.48, +4.48]", "+0.00 [+0.00, +0.00]"]
    assert lines[3] == ["road", "**-1.00** [-1.00, -1.00]", "**-1.00** [-1.00, -1.00]"]
    report = placed_report(study, rows)
    for table in (gains_table(study, rows, "sem_seg/mIoU"), class_gains_table(rows)):
        assert table in report


def test_gains_over_the_receptive_field(placed):
    study, records = placed
    fields = {"a": {"effective_share": 0.25}, "b": {"effective_share": 0.1}}
    (panel,) = gain_figure(study, summarise(study, records), fields).axes
    assert panel.get_title() == "OCR"  # the baseline has no panel
    points = panel.collections[-1]
    assert points.get_offsets().tolist() == [[10.0, 0.0], [25.0, 3.0]]
    white, filled = points.get_facecolors()
    assert white.tolist() == [1, 1, 1, 1] and filled.tolist() != [1, 1, 1, 1]
    ((bottom, top),) = [
        path.vertices[:, 1] for path in panel.collections[0].get_paths() if path.vertices[0, 0] > 20
    ]
    assert (bottom, top) == pytest.approx((0.52, 5.48), abs=5e-3)


def finished(study_file: Path, output: Path, name: str, value: float) -> None:
    """Write the record of a run with seed 3, as a study does."""
    system = read_study(study_file).systems[name]
    run = {"config": system.config.name, "opts": [*system.opts, "SEED", "3"]}
    run = {**run_record(name, 3, value, [[6, value]]), **run}
    run["metrics"]["sem_seg/pACC"] = 20.0
    (output / name / "seed3").mkdir(parents=True)
    (output / name / "seed3/study_run.json").write_text(json.dumps(run))


def test_the_command_without_gains_to_draw(study_file, tmp_path, capsys):
    """Runs of only the baseline, and studies without places, have no gains."""
    output, fields = tmp_path / "out", tmp_path / "fields.json"
    fields.write_text(json.dumps([{"feature": "layer3", "effective_share": 0.5}]))
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
    main([*arguments[:-1], "--baseline", "OCR"])  # it neither trains nor writes
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["|", "none", "|", "-3.00", "|"] in lines and ["|", "OCR", "|", "13.00", "|"] in lines
    assert before == {file: file.stat().st_mtime_ns for file in output.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "studies").glob("*.yaml")))
def test_studies_of_the_repository(name):
    """All systems differ, and each config accepts its overrides."""
    study = repository_study(name)
    trained = {(overridden(s.config, s.opts).dump(), s.trial) for s in study.systems.values()}
    assert len(trained) == len(study.systems)
    for system in study.systems.values():
        assert len(system.seeds) >= 3
        # Differences are paired by seed.
        assert {*system.seeds} <= {*study.systems[system.baseline].seeds}
