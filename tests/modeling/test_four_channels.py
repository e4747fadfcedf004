"""Networks for four channels see the last channel, in training and in every kind of test."""

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.modeling import build_model

from ocr_panoptic.modeling import deploy
from support.segmentors import make_batch, make_cfg, make_resnet_cfg


def four(cfg: CfgNode, *opts: object) -> CfgNode:
    values = ["INPUT.CHANNELS", 4, "MODEL.PIXEL_MEAN", "[1.0, 2.0, 3.0, 4.0]"]
    values += ["MODEL.PIXEL_STD", "[57.0, 57.0, 57.0, 9.0]"]
    cfg.merge_from_list([str(value) for value in (*values, *opts)])
    return cfg


LITE0 = (
    *("MODEL.TIMM.OUTPUT_STRIDE", 8, "MODEL.SEM_SEG_HEAD.IN_FEATURES", "['blocks.4']"),
    *("MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES", "['blocks.3']"),
)
SCALES = ("TEST.SCALES", "[0.5, 1.0]")
WINDOWS = (
    *("TEST.FLIP", True, *SCALES),
    *("TEST.SLIDING_WINDOW.SIZE", "[60, 60]", "TEST.SLIDING_WINDOW.STRIDE", "[40, 40]"),
)
CONFIGS = {
    "timm": lambda: four(make_cfg()),
    "timm, all stages": lambda: four(make_cfg(backbone="tf_efficientnet_lite0"), *LITE0),
    "dilated, another stem": lambda: four(make_resnet_cfg(50), "MODEL.RESNETS.STEM_TYPE", "basic"),
    "dilated, ceil mode": lambda: four(make_resnet_cfg(50), "MODEL.RESNETS.STEM_CEIL_MODE", True),
    "scales": lambda: four(make_cfg(), "MODEL.HMSA.ENABLED", True, *SCALES),
    "windows and mirrored": lambda: four(make_cfg(), *WINDOWS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_the_fourth_channel_is_seen(name):
    torch.manual_seed(0)
    cfg = CONFIGS[name]()
    model = build_model(cfg)
    first = next(p for p in model.backbone.parameters() if p.ndim == 4)
    assert first.shape[1] == 4
    batch = make_batch()
    for record in batch:
        record["image"] = torch.cat(
            [record["image"], 9 * torch.rand(1, *record["image"].shape[1:])]
        )
    without = batch[0]["image"].clone()
    without[3] = 0
    sum(model.train()(batch).values()).backward()
    assert first.grad[:, 3].abs().sum() > 0
    for tested in (model.eval(), deploy(model)):
        with torch.inference_mode():
            confidence = tested(batch[:1])[0]["confidence"]
            changed = tested([{**batch[0], "image": without}])[0]["confidence"]
        assert (confidence - changed).abs().max() > 1e-4
