"""train_net.py with the semantic-only architecture: another config is the only difference."""

import json

import pytest

from ocr_panoptic.data import SemanticSplit, prepare_semantic
from ocr_panoptic.engine import complete_config, load_config
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from train_net import main

from .conftest import CONFIGS

CONFIG = CONFIGS / "quick_schedules/semantic_ocr_R_18_scenes.yaml"


@pytest.fixture
def semantic_data(tiny_data):
    raw = tiny_data / "tiny/raw"
    splits = {s: SemanticSplit(raw / s / "images", raw / s / "semantic") for s in ("train", "val")}
    prepare_semantic("tiny_sem", raw / "classes.json", splits, tiny_data / "tiny_sem", workers=1)
    return tiny_data


def options(*more: str) -> list[str]:
    return [
        *("INPUT.CROP.SIZE", "[48, 48]"),
        *("DATASETS.TRAIN", "('tiny_sem_train',)", "DATASETS.TEST", "('tiny_sem_val',)"),
        *more,
    ]


def test_class_count_comes_from_the_data(semantic_data):
    cfg = load_config(str(CONFIG), options())
    complete_config(cfg, training=True)
    assert cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES == 9
    assert cfg.MODEL.TIMM.NORM == cfg.MODEL.OCR.NORM == "BN"
    with pytest.raises(ValueError, match="NUM_CLASSES is 19, but tiny_sem_train has 9 classes"):
        wrong = options("MODEL.SEM_SEG_HEAD.NUM_CLASSES", "19")
        complete_config(load_config(str(CONFIG), wrong), training=True)


FAST = ("OCR", "none", "GT-OCR")
SCHEMES = [s if s in FAST else pytest.param(s, marks=pytest.mark.slow) for s in CONTEXT_SCHEMES]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_trains_and_evaluates(semantic_data, make_args, tmp_path, scheme):
    main(make_args(*options("MODEL.CONTEXT.NAME", scheme), config=CONFIG))
    folder = tmp_path / "run"
    lines = (folder / "metrics.json").read_text().splitlines()
    log = {name for line in lines for name in json.loads(line)}
    assert {"loss_sem_seg", "loss_sem_seg_coarse"} <= log
    assert "tiny_sem_train, a sample of" in (folder / "log.txt").read_text()
    metrics = json.loads((folder / "inference/tiny_sem_val/metrics.json").read_text())
    assert 0 <= metrics["sem_seg"]["mIoU"] <= 100
    assert "IoU-sky" in metrics["sem_seg"]
    assert (folder / "inference/tiny_sem_val/per_class.csv").exists()
