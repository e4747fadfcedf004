"""The check of a run predicts the run."""

import os
from argparse import Namespace
from pathlib import Path

import pytest
from detectron2.data import DatasetCatalog

from ocr_panoptic.cli import call
from ocr_panoptic.config.files import load_config
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.workbench.checking.run_check import RunCheck, check_run
from support.tiny_runs import CONFIGS, OCR_CONFIG, SEMANTIC_CONFIG, TINY_SEMANTIC

pytestmark = pytest.mark.slow


def check(args, *, resume: bool = False) -> RunCheck:
    cfg = load_config(args.config_file, args.opts)
    complete_config(cfg, training=True)
    return check_run(cfg, resume=resume)


def last(check: RunCheck) -> str:
    return check.tables["Start"][-1][1]


@pytest.mark.parametrize("config", [OCR_CONFIG, SEMANTIC_CONFIG], ids=["panoptic", "semantic"])
def test_a_run_has_the_predicted_facts(trained, make_args, tmp_path, config):
    opts = TINY_SEMANTIC if config == SEMANTIC_CONFIG else []
    args = make_args(*opts, config=config)
    before = check(args)
    assert not before.faults
    assert last(before) == "no checkpoint"
    trained(*opts, config=config)

    headers, training, evaluation = before.tables["Data"]
    assert training[2] == 8 and evaluation[2] == 4
    assert "3 iterations of 2 images: 0.8 epochs" in training

    changed = ["SOLVER.MAX_ITER", "2", "SOLVER.STEPS", "()"]
    other = Namespace(**{**vars(args), "opts": args.opts + changed})
    (found,) = check(other, resume="auto").faults
    assert "is from iteration 3, but SOLVER.MAX_ITER" in found

    (found,) = check(args).faults
    assert "has checkpoints of another training" in found
    after = check(args, resume=True)
    assert not after.faults
    assert last(after) == f"{tmp_path}/run/model_final.pth"


def test_faults_that_would_stop_a_run(tiny_data, make_args, tmp_path):
    (fault,) = check(make_args("MODEL.WEIGHTS", "nowhere.pth")).faults
    assert fault.startswith("The weights nowhere.pth do not exist")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/model_0000001.pth").write_bytes(b"PK")
    (tmp_path / "run/last_checkpoint").write_text("model_0000001.pth")
    (fault,) = check(make_args(), resume=True).faults
    assert fault.startswith("--resume found no checkpoint to continue from in OUTPUT_DIR=")

    image = Path(DatasetCatalog.get("tiny_train")[-1]["file_name"])  # all images are checked
    os.rename(image, tmp_path / image.name)
    try:
        (fault,) = check(make_args("OUTPUT_DIR", tmp_path / "new")).faults
    finally:
        os.rename(tmp_path / image.name, image)
    assert fault.startswith("tiny_train: ") and image.name in fault


def test_the_number_of_gpus_divides_the_batch(tiny_data, make_args):
    args = make_args("SOLVER.IMS_PER_BATCH", 4)
    with pytest.raises(ValueError, match="SOLVER.IMS_PER_BATCH is 4; .* multiple of 3 x 1"):
        call("check", ["--config-file", args.config_file, "--num-gpus", "3", *args.opts])


def test_the_long_schedule_without_data(capsys, monkeypatch):
    monkeypatch.setenv("DETECTRON2_DATASETS", "nowhere")
    config = CONFIGS / "COCO-PanopticSegmentation/panoptic_fpn_ocr_R_50_3x.yaml"
    assert call("check", ["--config-file", str(config), "--num-gpus", "8"]) == 1
    said = capsys.readouterr().out
    plan = "cannot be used  270000 iterations of 16 images"
    assert f"coco_2017_train_panoptic_separated  {plan}" in said
    assert f"separated: {Path.cwd() / 'nowhere/coco'}" in said.partition("run would fail:")[2]
