"""Synchronised norms keep their names, and missing features are refused."""

import re

import pytest
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.layers.conv import SYNCHRONISED
from support.segmentors import make_cfg, make_resnet_cfg


@pytest.mark.slow
@pytest.mark.parametrize(
    "make, norm",
    [(lambda: make_resnet_cfg(50), "SyncBN"), (make_cfg, "SyncBN"), (make_cfg, "naiveSyncBN")],
)
def test_synchronised_norms_have_the_same_names(make, norm):
    """The norms belong to Detectron2's backbone, to timm's backbone, and to the head."""
    cfg = make()
    plain = build_model(cfg)
    for node in (cfg.MODEL.RESNETS, cfg.MODEL.TIMM, cfg.MODEL.OCR):
        node.NORM = norm
    synchronised = build_model(cfg)
    assert plain.state_dict().keys() == synchronised.state_dict().keys()
    for (name, a), b in zip(plain.named_modules(), synchronised.modules(), strict=True):
        if isinstance(a, nn.BatchNorm2d):
            assert isinstance(b, SYNCHRONISED), name


HEAD, PYRAMID, STAGES = "SEM_SEG_HEAD.IN_FEATURES", ": p2, p3, p4, p5, p6", ": act1, layer1"


@pytest.mark.parametrize(
    "head, key, names, fact",
    [
        *(("ocr", HEAD, ["p2", "p9"], PYRAMID), ("ocr", HEAD, [], PYRAMID)),
        ("plain", HEAD, ["p2", "p9"], PYRAMID),
        ("ocr", "FPN.IN_FEATURES", ["res9"], "feature 'res9'"),
        *(("ocr", f"{part}.IN_FEATURES", ["p9"], "feature 'p9'") for part in ("RPN", "ROI_HEADS")),
        *(("semantic", HEAD, ["layer9"], STAGES), ("semantic", HEAD, [], STAGES)),
        ("semantic", "SEM_SEG_HEAD.COARSE_IN_FEATURES", ["layer9"], STAGES),
    ],
)
def test_missing_features(small_cfg, head, key, names, fact):
    opts = f"MODEL.{key}", str(names)
    cfg = make_cfg(*opts) if head == "semantic" else small_cfg(head, *opts)
    with pytest.raises(ValueError, match=rf"{key} is {re.escape(str(names))}.*{fact}"):
        build_model(cfg)
