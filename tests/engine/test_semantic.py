"""train_net.py with the semantic-only architecture: another config is the only difference."""

import json

import pytest

from ocr_panoptic.engine import complete_config, load_config
from train_net import main

from .conftest import SEMANTIC_CONFIG, TINY_SEMANTIC


def test_class_count_comes_from_the_data(tiny_data):
    cfg = load_config(str(SEMANTIC_CONFIG), TINY_SEMANTIC)
    complete_config(cfg, training=True)
    assert cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES == 9
    assert cfg.MODEL.TIMM.NORM == cfg.MODEL.OCR.NORM == "BN"
    with pytest.raises(ValueError, match="NUM_CLASSES is 19, but tiny_sem_train has 9 classes"):
        wrong = [*TINY_SEMANTIC, "MODEL.SEM_SEG_HEAD.NUM_CLASSES", "19"]
        complete_config(load_config(str(SEMANTIC_CONFIG), wrong), training=True)


@pytest.mark.parametrize("scheme", ["OCR", "none"])
def test_trains_and_evaluates(tiny_data, make_args, tmp_path, scheme):
    main(make_args(*TINY_SEMANTIC, "MODEL.CONTEXT.NAME", scheme, config=SEMANTIC_CONFIG))
    folder = tmp_path / "run"
    lines = (folder / "metrics.json").read_text().splitlines()
    log = {name for line in lines for name in json.loads(line)}
    assert {"loss_sem_seg", "loss_sem_seg_coarse"} <= log
    assert "tiny_sem_train, a sample of" in (folder / "log.txt").read_text()
    metrics = json.loads((folder / "inference/tiny_sem_val/metrics.json").read_text())
    assert 0 <= metrics["sem_seg"]["mIoU"] <= 100
    assert "IoU-sky" in metrics["sem_seg"]
    assert (folder / "inference/tiny_sem_val/per_class.csv").exists()
