"""A plan is a config that Detectron2 reads, and gives reasons; strange data are planned, too."""

import re

import numpy as np
import pytest
import torch
from detectron2.config import get_cfg
from PIL import Image

import ocr_panoptic
from ocr_panoptic.cli import call
from ocr_panoptic.cli.arguments import RunOptions
from ocr_panoptic.cli.plan import plan_without_config
from ocr_panoptic.config.files import config_path, load_config, values_by_key, values_of_file
from ocr_panoptic.data.data_file import data_options, read_data_files
from ocr_panoptic.errors import UserError
from ocr_panoptic.predict.complete import complete_config
from ocr_panoptic.workbench.planning import measure, plan, schedule
from ocr_panoptic.workbench.planning.measure import Costs
from support.drawn_data import cells

pytestmark = pytest.mark.usefixtures("clean_catalog")
LITE0 = "Custom-PanopticSegmentation/panoptic_fpn_ocr_Lite0"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def values(made: plan.Plan) -> dict:
    return {decision.key: decision.value for decision in made.decisions}


def test_the_config_is_detectron2s(panoptic, tmp_path):
    made = ocr_panoptic.plan(
        panoptic([cells(64, 64, 6, 10)]), output=tmp_path / "new/a.yaml", **{"SEED": 5}
    )
    cfg = get_cfg()
    ocr_panoptic.add_ocr_config(cfg)
    cfg.merge_from_file(str(tmp_path / "new/a.yaml"))
    assert cfg == load_config(str(tmp_path / "new/a.yaml"), {"MODEL.DEVICE": cfg.MODEL.DEVICE})
    found, base = values_by_key(cfg), values_by_key(load_config(LITE0))
    changed = {key for key in found if found[key] != base[key]} - {"MODEL.DEVICE"}
    assert changed == {*values(made), "DATASETS.FILES", "DATASETS.TRAIN", "DATASETS.TEST"} | {
        "OUTPUT_DIR",
        "SEED",
    }
    text = (tmp_path / "new/a.yaml").read_text()
    for decision in made.decisions:
        name = decision.key.rpartition(".")[2]
        assert re.search(rf"^ +{name}: .*  # {re.escape(decision.because)}$", text, re.M), decision
        assert decision.because in str(made)
    assert {*values_of_file(str(config_path(LITE0)))} <= {
        *values_of_file(str(tmp_path / "new/a.yaml"))
    }


def test_a_value_of_the_user_is_not_decided(panoptic):
    file = panoptic([cells(64, 64, 6, 10)])
    assert "SOLVER.EPOCHS" in values(ocr_panoptic.plan(file))
    made = ocr_panoptic.plan(file, **{"SOLVER.MAX_ITER": 7})
    assert "SOLVER.EPOCHS" not in values(made) and "MAX_ITER: 7\n" in made.yaml()
    assert "SOLVER.BASE_LR" in values(made)
    made = ocr_panoptic.plan(file, **{"SOLVER.BASE_LR": 0.5})
    assert "SOLVER.BASE_LR" not in values(made) and "BASE_LR: 0.5\n" in made.yaml()


def test_a_whole_image_of_objects(panoptic):
    """An image of 8,100 objects of 2 pixels, 630 pixels wide and high."""
    made = ocr_panoptic.plan(panoptic([cells(630, 630, 2, 7)]))
    assert made.data.objects == (8100, 8100, 8100)
    found = values(made)
    assert found["TEST.DETECTIONS_PER_IMAGE"] == 1000
    assert found["INPUT.MIN_SIZE_TRAIN"] == [630] and found["INPUT.CROP.SIZE"] == [256, 256]
    assert made.yaml()


def test_very_long_images(semantic, panoptic):
    truth = np.zeros((100, 20_000), np.uint8)
    truth[50:] = 1
    made = ocr_panoptic.plan(semantic([truth]))
    assert values(made)["INPUT.MAX_SIZE_TEST"] == 51_200 and made.data.aspect == 200
    size, step = (values(made)[f"TEST.SLIDING_WINDOW.{key}"] for key in ("SIZE", "STRIDE"))
    assert size[0] > step[0] == step[1]


def test_masks_of_one_bit_and_grey_photos(semantic, tmp_path):
    file = semantic([np.eye(32, dtype=np.uint8)] * 2, channels=1)
    for path in (tmp_path / "labels").iterdir():
        Image.fromarray(np.asarray(Image.open(path)) > 0).save(path)
        assert Image.open(path).mode == "1"
    made = ocr_panoptic.plan(file)
    found = values(made)
    assert found["INPUT.CHANNELS"] == 1 and found["MODEL.PIXEL_MEAN"] == [127.5]
    assert [c.pixels for c in made.data.classes] == [31 / 32, 1 / 32]
    made.write(tmp_path / "a.yaml")
    cfg = load_config(str(tmp_path / "a.yaml"))
    complete_config(cfg, training=True, needs_data=True)
    assert cfg.SOLVER.MAX_ITER == schedule.LEAST


def test_only_things(panoptic):
    made = ocr_panoptic.plan(panoptic([(np.full((40, 40), 7), {7: 1})], stuff=False))
    assert made.data.sides[2] == 1 and made.data.has_top


def test_the_length_of_a_training(panoptic, monkeypatch):
    file = panoptic([cells(64, 64, 20, 32)] * 2)
    found = values(ocr_panoptic.plan(file))
    assert found["SOLVER.EPOCHS"] * 2 / 4 == schedule.LEAST
    monkeypatch.setattr(plan, "measured_costs", lambda cfg, files: Costs(0.5, 10.0))
    found = values(ocr_panoptic.plan(file, minutes=10))
    assert found["TEST.EVALUATIONS"] == 5  # 15 % of the time hold 8
    assert found["SOLVER.MAX_ITER"] == (600 - schedule.START - 50) / 0.5
    found = values(ocr_panoptic.plan(file, minutes=2))
    assert found["TEST.EVALUATIONS"] == 1 and found["SOLVER.WARMUP_ITERS"] == 18
    with pytest.raises(UserError, match=r"--minutes is 0.5, .* take 1 minutes"):
        ocr_panoptic.plan(file, minutes=0.5)
    with pytest.raises(UserError, match="--minutes is -1; expected a number above 0"):
        ocr_panoptic.plan(file, minutes=-1)
    with pytest.raises(UserError, match="nothing to plan for"):
        ocr_panoptic.plan([])


def test_the_length_leaves_the_evaluations_that_the_user_wants(panoptic, monkeypatch):
    file = panoptic([cells(64, 64, 20, 32)] * 2)
    monkeypatch.setattr(plan, "measured_costs", lambda cfg, files: Costs(0.5, 10.0))
    given = {"TEST.EVALUATIONS": 0, "SOLVER.WARMUP_ITERS": 300}
    found = values(ocr_panoptic.plan(file, minutes=10, **given))
    assert not found.keys() & given.keys()
    assert found["SOLVER.MAX_ITER"] == (600 - schedule.START - 10) / 0.5  # one at the end
    found = values(ocr_panoptic.plan(file, minutes=10, **{"TEST.EVAL_PERIOD": 100}))
    assert "TEST.EVALUATIONS" not in found
    assert found["SOLVER.MAX_ITER"] == int((600 - schedule.START - 10) / 0.6)
    with pytest.raises(UserError, match="Both --minutes and SOLVER.MAX_ITER set the length"):
        ocr_panoptic.plan(file, minutes=10, **{"SOLVER.MAX_ITER": 9})


TINY = [
    *("MODEL.WEIGHTS", "", "INPUT.MIN_SIZE_TRAIN", "(64,)", "INPUT.MIN_SIZE_TEST", "64"),
    *("DATALOADER.NUM_WORKERS", "0", "MODEL.RPN.POST_NMS_TOPK_TRAIN", "20"),
    *("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", "8", "TEST.EVALUATIONS", "0"),
]


def test_training_without_a_config(panoptic, tmp_path, capsys, monkeypatch):
    """The plan is printed and kept; a resumed training takes it again."""
    monkeypatch.chdir(tmp_path)
    words = ["--data", str(panoptic([cells(64, 64, 20, 32)] * 2)), *TINY, "SOLVER.IMS_PER_BATCH", 1]
    words = [*map(str, words)]
    call("train", [*words, "SOLVER.MAX_ITER", "1"])
    said = capsys.readouterr().out
    assert "panoptic data, a machine without a GPU" in said and "Panoptic quality" in said
    assert (tmp_path / "output/drawn/model_final.pth").is_file()
    kept = (tmp_path / "output/drawn/plan.yaml").read_text()
    with pytest.raises(UserError, match="checkpoints of another training"):
        call("train", [*words, "SOLVER.MAX_ITER", "1"])
    monkeypatch.setattr(plan, "make_plan", None)
    call("train", ["--resume", *words, "SOLVER.MAX_ITER", "2"])
    assert "because" not in capsys.readouterr().out
    assert (tmp_path / "output/drawn/plan.yaml").read_text() == kept


def test_a_start_without_a_checkpoint_is_planned_again(panoptic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, keys = [str(panoptic([cells(64, 64, 20, 32)] * 2))], {"OUTPUT_DIR": "out"}
    (tmp_path / "out").mkdir()
    (tmp_path / "out/plan.yaml").write_text("SEED: 5")  # of a training that soon ended
    options = RunOptions(data=data, opts=keys, resume="auto")
    plan_without_config(options)
    cfg = load_config(options.config_file)
    assert (cfg.SEED, cfg.OUTPUT_DIR, cfg.DATASETS.TRAIN) == (-1, "out", ("drawn_train",))


def test_check_allows_what_trains(semantic, tmp_path):
    """SegFix has no classes, so data files may differ in theirs; a plan is no part of the check."""
    file = semantic([np.eye(32, dtype=np.uint8)] * 2)
    other = tmp_path / "other.yaml"
    text = file.read_text().replace("name: drawn", "name: other").replace("[a, b]", "[sky, b]")
    other.write_text(text)
    config = ["--config-file", "quick_schedules/segfix_R_18_scenes"]
    words = [*config, "--data", str(file), str(other), "OUTPUT_DIR", str(tmp_path / "out")]
    assert call("check", words) == 0


def test_costs_are_measured(panoptic, monkeypatch):
    seen, build = [], measure.build_model
    monkeypatch.setattr(
        measure, "build_model", lambda c: seen.append(c.TEST.DETECTIONS_PER_IMAGE) or build(c)
    )
    monkeypatch.setattr(measure, "STEPS", 1)
    file = panoptic([cells(64, 64, 20, 32)] * 3)
    keys = dict(zip(TINY[::2], TINY[1::2], strict=True))
    cfg = load_config(LITE0, {**keys, **data_options(read_data_files([file]))})
    cfg.TEST.DETECTIONS_PER_IMAGE = 450
    costs = measure.measured_costs(cfg.clone(), read_data_files([file]))
    assert costs.step > 0 and costs.evaluation > 0 and seen == [100]
    monkeypatch.setattr(measure, "SLOWER", 10**9)
    costs = measure.measured_costs(cfg.clone(), read_data_files([file]))
    assert costs.evaluation < 10**6  # of two classes, one always has a score above 0.05
    cfg.MODEL.ROI_HEADS.SCORE_THRESH_TEST = 1.0
    monkeypatch.setattr(measure, "LATER", 10**9)
    costs = measure.measured_costs(cfg, read_data_files([file]))
    assert costs.evaluation > 10**6 and costs.step > 10**6


def test_steps_without_objects_are_not_expected_to_slow_down(semantic, monkeypatch):
    monkeypatch.setattr(measure, "STEPS", 1)
    monkeypatch.setattr(measure, "LATER", 10**9)
    files = read_data_files([semantic([np.eye(64, dtype=np.uint8)] * 2)])
    keys = {"MODEL.WEIGHTS": "", "DATALOADER.NUM_WORKERS": 0, **data_options(files)}
    cfg = load_config("Custom-SemanticSegmentation/plain_Lite0", keys)
    assert measure.measured_costs(cfg, files).step < 10**6
