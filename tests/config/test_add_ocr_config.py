"""Detectron2's functions can use a config with the keys of this project."""

import pytest
from detectron2.config import CfgNode, get_cfg
from detectron2.projects.deeplab import add_deeplab_config

from ocr_panoptic import add_ocr_config
from ocr_panoptic.config.files import values_by_key
from ocr_panoptic.config.keys import KEYS, THEIRS, check_values


def set_by_user() -> CfgNode:
    cfg = get_cfg()
    cfg.MODEL.DEVICE, cfg.SOLVER.BASE_LR, cfg.TEST.AUG.ENABLED = "cuda:1", 3.0, True
    return cfg


def of_deeplab() -> CfgNode:
    cfg = get_cfg()
    add_deeplab_config(cfg)
    cfg.MODEL.RESNETS.RES5_MULTI_GRID = [1, 2, 4]
    return cfg


@pytest.mark.parametrize("make", [get_cfg, set_by_user, of_deeplab])
def test_keys_that_are_there_keep_their_values(make):
    cfg = make()
    before = values_by_key(cfg)
    for _ in range(2):
        add_ocr_config(cfg)
        after = values_by_key(cfg)
        assert {key: after[key] for key in before} == before
        ours = {key.name for key in KEYS if key.default is not THEIRS}
        assert after.keys() - before.keys() == ours - before.keys()


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0"])
def test_devices(device):
    add_ocr_config(cfg := get_cfg())
    cfg.MODEL.DEVICE = device
    check_values(cfg)
