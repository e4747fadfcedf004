"""Comparisons of heads on a data set: their systems and their reports."""

import json

import pytest

from ocr_panoptic.cli import call
from ocr_panoptic.config.files import load_config, overrides_of
from ocr_panoptic.config.unread import check_unread_keys
from ocr_panoptic.workbench.comparing.compare import OURS, comparison, comparison_report, verdict
from ocr_panoptic.workbench.comparing.intervals import student_quantile
from support.study_records import cells, run_record
from support.tiny_runs import ROOT

CONFIGS = ROOT / "configs"
PANOPTIC = CONFIGS / "Custom-PanopticSegmentation/panoptic_fpn_ocr_R_50.yaml"
ON_CPU = CONFIGS / "Custom-PanopticSegmentation/panoptic_fpn_ocr_Lite0.yaml"
SEMANTIC = CONFIGS / "Custom-SemanticSegmentation/ocr_R_101_d8.yaml"  # the published head


@pytest.mark.parametrize("file", [PANOPTIC, ON_CPU, SEMANTIC])
def test_standard_heads_are_compared_with_the_configs_head(file):
    is_semantic, opts = file == SEMANTIC, ["SOLVER.MAX_ITER", "7"]
    if is_semantic:
        opts += ["MODEL.SEM_SEG_HEAD.IN_FEATURES", "['res5']"]
        opts += ["MODEL.OCR.RESIDUAL", True, "MODEL.OCR.COARSE_LOSS_WEIGHT", 0.0]
    found, registered = {}, "ContextSemSegHead" if is_semantic else "OCRSemSegFPNHead"
    for name, system in comparison(file, overrides_of(opts), [0, 1]).systems.items():
        cfg = load_config(str(system.config), list(system.opts))
        check_unread_keys(cfg)
        assert (cfg.SOLVER.MAX_ITER, system.seeds) == (7, (0, 1))
        head, ocr = cfg.MODEL.SEM_SEG_HEAD, cfg.MODEL.OCR
        assert registered == head.NAME
        found[name] = cfg.MODEL.CONTEXT.NAME, ocr.RESIDUAL, ocr.COARSE_START
        assert name != "OCR" or ocr.COARSE_LOSS_WEIGHT > 0
        features = {"res5"} if name == OURS else {"res4", "res5"}
        assert not is_semantic or set(head.IN_FEATURES) == features
    start = "pytorch" if is_semantic else "detectron2"
    assert found == {
        "plain": ("none", False, "pytorch"),
        "PPM": ("PPM", False, "pytorch"),
        "OCR": ("OCR", False, "pytorch"),
        OURS: (load_config(str(file), []).MODEL.CONTEXT.NAME, True, start),
    }


@pytest.mark.slow
@pytest.mark.parametrize("file", [PANOPTIC, SEMANTIC])
def test_heads_have_only_keys_that_they_read(file):
    head = "MODEL.SEM_SEG_HEAD."
    opts = [head + "LOSS_TYPE", "ohem", head + "COARSE_LOSS_TYPE", "dice"]
    opts += [head + "OHEM_MIN_KEPT", "5", head + "CLASS_WEIGHTS", "[1.0, 2.0]"]
    opts += ["MODEL.CONTEXT.NAME", "ASP-OCR", "MODEL.CONTEXT.DILATIONS", "(6, 12)"]
    for system in comparison(file, overrides_of(opts), [0]).systems.values():
        cfg = load_config(str(system.config), list(system.opts))
        check_unread_keys(cfg)
        assert cfg.MODEL.SEM_SEG_HEAD.LOSS_TYPE == "ohem"


def test_a_head_equal_to_ours_is_not_trained_twice():
    with pytest.raises(ValueError, match="META_ARCHITECTURE is SegFix;.* Pano"):
        comparison(CONFIGS / "SegFix/segfix_HRNet_W48_custom.yaml", {}, [0])
    folder = CONFIGS / "COCO-PanopticSegmentation"
    ocr, plain = (
        comparison(folder / f"{name}_R_50_1x.yaml", {}, [0]).systems
        for name in ("panoptic_fpn_ocr", "panoptic_fpn")
    )
    assert (list(ocr), list(plain)) == (["plain", "PPM", OURS], ["plain", "PPM", "OCR", OURS])
    for system in (ocr["PPM"], plain["PPM"], plain["OCR"]):  # unlike Detectron2's head
        head = load_config(str(system.config), [*system.opts]).MODEL.SEM_SEG_HEAD
        assert head.NAME == "OCRSemSegFPNHead"


def test_report_by_hand():
    """
    Gains over plain are 1, 2, 3: mean 2, standard error 1 / sqrt(3), t(2) = 4.3027.

    Gains over PPM are 1, 1.1, 0.9; OCR has a single run. The class sky gains 1 over plain.
    """
    study = comparison(SEMANTIC, {"MODEL.OCR.RESIDUAL": "True"}, [0, 1, 2])
    values = {OURS: [51, 53, 55], "plain": [50, 51, 52], "PPM": [52, 54.1, 55.9], "OCR": [49]}
    records = [
        run_record(name, seed, value, sky=8.0 if name == OURS else 7.0)
        for name, column in values.items()
        for seed, value in enumerate(column)
    ]
    assert verdict(study, records) == (
        "sem_seg/mIoU, ours against plain +2.00 [-0.48, +4.48] undecided "
        "(more seeds needed), PPM -1.00 [-1.25, -0.75] worse, OCR +2.00 (no interval for one seed)"
    )
    assert verdict(study, []) == ""
    near = [run_record(n, s, v) for n, s, v in [(OURS, 0, 5.1), (OURS, 1, 5), ("plain", 0, 5)]]
    assert "plain +0.05 [-0.59, +0.69] level" in verdict(study, [*near, run_record("plain", 1, 5)])
    heads, classes, _ = comparison_report(study, records).split("\n\n")
    columns, _, plain, *_, ours = cells(heads)
    plain, ours = dict(zip(columns, plain)), dict(zip(columns, ours))
    assert (plain["runs"], plain["sem_seg/mIoU"]) == ("3", "51.00 ± 1.00")
    assert plain["mIoU gain of ours"] == "+2.00 [-0.48, +4.48]"
    assert (ours["parameters (M)"], ours["mIoU gain of ours"]) == ("2.50", "")
    assert (ours["CPU s a run"], ours["peak memory (MiB)"]) == ("100", "2")
    sky = ["sky", "**+1.00** [+1.00, +1.00]", "**+1.00** [+1.00, +1.00]", "+1.00"]
    assert cells(classes)[::2] == [["gain of ours, by class", "plain", "PPM", "OCR"], sky]


@pytest.mark.slow
def test_the_command_reads_finished_runs(tmp_path, capsys):
    opts = ["SOLVER.MAX_ITER", "7", "MODEL.OCR.RESIDUAL", "True"]
    study = comparison(SEMANTIC, overrides_of(opts), [0])
    for place, (name, system) in enumerate(study.systems.items()):
        record = run_record(name, 0, 50.0 + place) | system.settings(0)
        record["metrics"] = dict.fromkeys(study.metrics, 50.0 + place)
        folder = tmp_path / name / "seed0"
        folder.mkdir(parents=True)
        (folder / "study_run.json").write_text(json.dumps(record))
    words = ["--config-file", "Custom-SemanticSegmentation/ocr_R_101_d8", "--report-only"]
    words += ["--seeds", "1", "--output"]
    call("compare", [*words, str(tmp_path), *opts])
    printed = capsys.readouterr().out
    assert "mIoU, ours against plain +3.00 (no interval for one seed), PPM +2.00" in printed
    assert (tmp_path / "tables.md").read_text() == printed
    assert len(json.loads((tmp_path / "results.json").read_text())) == 4
    with pytest.raises(ValueError, match="SOLVER.MAX_ITER"):  # unlike the finished runs
        call("compare", [*words, str(tmp_path), *opts, "SOLVER.MAX_ITER", "8"])
    with pytest.raises(FileNotFoundError, match="no run of this comparison"):
        call("compare", [*words, str(tmp_path / "none")])


def test_runs_import_the_modules_of_the_command(tmp_path, monkeypatch):
    def run_study(study: object, train: list[str], output: object) -> None:
        raise InterruptedError(*train)

    monkeypatch.setattr("ocr_panoptic.workbench.comparing.study.run_study", run_study)
    words = ["--config-file", str(SEMANTIC), "--output", str(tmp_path)]
    with pytest.raises(InterruptedError) as stopped:
        call("compare", ["--import", "string", "--import", "cmath", *words])
    assert stopped.value.args[-5:] == ("train", "--import", "string", "--import", "cmath")


TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 30: 2.042}


def test_quantiles_of_the_printed_table():
    found = {freedom: student_quantile(freedom) for freedom in TABLE}
    assert found == pytest.approx(TABLE, abs=5e-4)
