"""Studies of places: files and tables."""

import json
from pathlib import Path

import pytest
import yaml

from ocr_panoptic.workbench.comparing.intervals import Interval
from ocr_panoptic.workbench.comparing.study import read_runs
from studies.records import add_records
from studies.run import main
from studies.study_file import PlacedStudy, PlacedSystem, overridden, read_study
from studies.study_tables import study_report, summarise
from support.study_records import cells, repository_study, run_record
from support.tiny_runs import ROOT, SEMANTIC_CONFIG


@pytest.fixture
def write_study(tmp_path):
    def write(**changed: object) -> Path:
        content = {
            "config": str(SEMANTIC_CONFIG),
            "opts": ["SOLVER.MAX_ITER", 6],
            "seeds": [3],
            "baseline": "none",
            "metrics": ["sem_seg/mIoU", "sem_seg/pACC"],
            "systems": {"none": {"opts": ["MODEL.CONTEXT.NAME", "none"]}, "OCR": None},
        }
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump({**content, **changed}, sort_keys=False))
        return path

    return write


def test_systems_at_places(write_study):
    """Each scheme at each place, and its baseline, has all three overrides in turn."""
    ocr = {"seeds": [3, 4], "opts": ["SOLVER.MAX_ITER", 7]}
    systems = {"none": {"opts": ["MODEL.CONTEXT.NAME", "none"]}, "OCR": ocr}
    file = write_study(systems=systems, at={"fast": {"opts": ["SOLVER.BASE_LR", 0.5]}, "slow": {}})
    study = read_study(file)
    assert list(study.systems) == ["none at fast", "OCR at fast", "none at slow", "OCR at slow"]
    system, plain = study.systems["OCR at fast"], study.systems["none at slow"]
    assert system.opts[-4:] == ("SOLVER.MAX_ITER", "7", "SOLVER.BASE_LR", "0.5")
    assert (system.scheme, system.place, system.baseline) == ("OCR", "fast", "none at fast")
    assert (system.seeds, plain.seeds, study.seeds) == ((3, 4), (3,), (3, 4))
    assert plain.baseline == "none at slow"
    other = [system.baseline for system in read_study(file, "OCR").systems.values()]
    assert other == ["OCR at fast"] * 2 + ["OCR at slow"] * 2
    with pytest.raises(ValueError, match="study.yaml: the baseline 'PPM' is none of"):
        read_study(file, "PPM")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"seed": [1]}, "expected the keys .*; found .*"),
        ({"systems": {"none": {"opt": []}}}, r"none of systems has \['opt'\]; it may have config"),
        ({"at": {"layer3": {"seeds": [1]}}}, r"layer3 of at has \['seeds'\]; it may have opts"),
        ({"opts": ["NO.KEY", 1]}, "none: Unknown config key NO.KEY"),
    ],
)
def test_faults(write_study, change, message):
    with pytest.raises(ValueError, match=f"study.yaml: {message}"):
        read_study(write_study(**change))


def test_finished_runs_of_another_machine(write_study, tmp_path):
    """Runs are joined in any order if they have the study's settings and metrics."""
    study, output, results = read_study(write_study()), tmp_path / "out", tmp_path / "results.json"
    metrics = {"metrics": {"sem_seg/mIoU": 1.0, "sem_seg/pACC": 2.0}}
    records = [
        {"system": name, "seed": 3, **study.systems[name].settings(3), **metrics}
        for name in ("none", "OCR")
    ]
    results.write_text(json.dumps([*records, {**records[0], "seed": 9}]))
    assert add_records(study, output, results) == 2
    assert read_runs(study, output) == records
    assert add_records(study, output, results) == 0
    *opts, key, value = records[1]["opts"]
    results.write_text(json.dumps([{**records[1], "opts": [key, value, *opts]}]))
    assert add_records(study, tmp_path / "reordered", results) == 1
    for changed, message in (
        ({"opts": ["SOLVER.MAX_ITER", "9"]}, "OCR, seed 3 was trained with SOLVER.MAX_ITER 9,"),
        ({"metrics": {}}, "OCR, seed 3 has no sem_seg/mIoU, sem_seg/pACC"),
    ):
        results.write_text(json.dumps([records[0], {**records[1], **changed}]))
        with pytest.raises(ValueError, match=message):
            add_records(study, tmp_path / "other", results)
    assert not (tmp_path / "other").exists()


def study_of(schemes: list[str], places: list[str]) -> PlacedStudy:
    names = {
        (scheme, place): f"{scheme} at {place}" if place else scheme
        for place in places
        for scheme in schemes
    }
    systems = {
        name: PlacedSystem(
            *(Path("a.yaml"), (), (1, 2, 3)),
            **{"baseline": names["none", place], "scheme": scheme, "place": place},
        )
        for (scheme, place), name in names.items()
    }
    return PlacedStudy(systems, ("sem_seg/mIoU",))


def tables_of(report: str) -> list[list[list[str]]]:
    """Return the cells of each table in a report, without the lines below the headings."""
    tables = [cells(part) for part in report.split("\n\n") if part.startswith("|")]
    return [[heading, *rows] for heading, _, *rows in tables]


def test_summary_by_hand():
    study = study_of(["none", "OCR", "PPM"], [""])
    records = [run_record("none", s, v) for s, v in ((1, 50.0), (2, 52.0), (3, 57.0))]
    records += [run_record("OCR", s, v) for s, v in ((1, 53.0), (3, 58.0))]
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

    report = study_report(study, rows)
    systems, costs = tables_of(report)
    assert systems[1:] == [
        ["none", "3", "53.00 ± 3.61"],
        ["OCR", "2", "+2.00 [-10.71, +14.71]"],
        ["PPM", "0", ""],
    ]
    assert costs[2] == ["OCR", "2", "2.50", "0.20", "200", "3"]
    assert costs[3] == ["PPM", "0", "", "", "", ""]
    assert "2 pairs: ± 9.0 standard deviations" in report and "3 pairs" not in report

    # If a metric is undefined in a run, the other runs count. Older records have no cost.
    undefined = summarise(study, [*records[:4], run_record("OCR", 3, None)])[1]
    assert undefined.means[metric] == (53.0, None)
    assert undefined.gains[metric] == Interval(3.0, None, 1)
    older = [{k: v for k, v in r.items() if k != "cpu_seconds"} for r in records]
    assert summarise(study, older)[0].costs[2] is None


def test_gains_at_each_place():
    """
    Gains are 2, 3, 4 at place a and 0, 1, -1 at place b; sky gains 1, 2, 3 at a.

    The interval of three values with deviation 1 is 4.303 / 3 ** 0.5 = 2.48 to both sides.
    """
    study, records = study_of(["none", "OCR"], ["a", "b"]), []
    for seed in (1, 2, 3):
        records += [run_record("none at a", seed, 10.0 * seed, sky=1.0, road=5.0)]
        records += [run_record("OCR at a", seed, 10.0 * seed + seed + 1, sky=1.0 + seed, road=4.0)]
        records += [run_record("none at b", seed, 50.0, sky=3.0, road=7.0)]
        records += [run_record("OCR at b", seed, 50.0 + (0, 1, -1)[seed - 1], sky=3.0, road=6.0)]
    rows = summarise(study, records)
    gains, classes, _ = tables_of(study_report(study, rows))
    assert gains == [
        ["sem_seg/mIoU", "a", "b"],
        ["none", "20.00 ± 10.00", "50.00 ± 0.00"],
        ["OCR", "**+3.00** [+0.52, +5.48]", "+0.00 [-2.48, +2.48]"],
    ]
    assert classes == [
        ["class", "OCR at a", "OCR at b"],
        ["sky", "+2.00 [-0.48, +4.48]", "+0.00 [+0.00, +0.00]"],
        ["road", "**-1.00** [-1.00, -1.00]", "**-1.00** [-1.00, -1.00]"],
    ]


def test_the_command_with_another_baseline(write_study, tmp_path, capsys):
    """It neither trains nor writes."""
    file, output = write_study(at={"layer3": None}), tmp_path / "out"
    arguments = [str(file), "--output", str(output), "--report-only"]

    def finish(name: str, value: float) -> None:
        run = run_record(name, 3, value)
        run |= read_study(file).systems[name].settings(3)
        run["metrics"]["sem_seg/pACC"] = 20.0
        (output / name / "seed3").mkdir(parents=True)
        (output / name / "seed3/study_run.json").write_text(json.dumps(run))

    finish("none at layer3", 10.0)
    main(arguments)
    assert "Wrote tables.md and results.json to" in capsys.readouterr().out
    finish("OCR at layer3", 13.0)
    before = {file: file.stat().st_mtime_ns for file in output.rglob("*")}
    main([*arguments[:-1], "--baseline", "OCR"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["|", "none", "|", "-3.00", "|"] in lines and ["|", "OCR", "|", "13.00", "|"] in lines
    assert before == {file: file.stat().st_mtime_ns for file in output.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "studies").glob("*.yaml")))
def test_studies_of_the_repository(name):
    """All systems differ, and each config accepts its overrides."""
    study = repository_study(name)
    trained = {overridden(s.config, s.opts).dump() for s in study.systems.values()}
    assert len(trained) == len(study.systems)
    for system in study.systems.values():
        assert len(system.seeds) >= 3
        # Differences are paired by seed.
        assert {*system.seeds} <= {*study.systems[system.baseline].seeds}
