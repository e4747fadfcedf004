"""Synchronised norms keep their names, and models that cannot work are refused."""

import re
from functools import partial

import pytest
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.layers.conv import SYNCHRONISED
from support.segmentors import make_cfg, make_resnet_cfg, make_segfix_cfg


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


MAKERS = {
    "semantic": make_cfg,
    "dilated": partial(make_resnet_cfg, 50, "MODEL.RESNETS.STEM_CEIL_MODE", True),
    "hmsa": partial(make_cfg, "MODEL.HMSA.ENABLED", True),
    "segfix": make_segfix_cfg,
}
HEAD, HEAD_2 = "MODEL.SEM_SEG_HEAD.IN_FEATURES", "MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES"
SCHEME, NAME = "MODEL.CONTEXT.NAME", "MODEL.SEM_SEG_HEAD.NAME"
SCALES = "[0.5, 2.0]", "[]", "[1.0, 0.5, 0.5]", "[1.0, 0.0]", "[1.0, -1.0]"
PYRAMID, STAGES = ": p2, p3, p4, p5, p6", ": act1, layer1"
NO_REGIONS = "SUPERVISION False needs .* does not use any"


def without(kind: str, key: str, names: list[str], fact: str) -> tuple:
    """Return a case whose backbone lacks some of the named features."""
    return kind, (key, names), rf"{key} is {re.escape(str(names))}.*{fact}"


@pytest.mark.parametrize(
    "kind, words, message",
    [
        *(without("ocr", HEAD, names, PYRAMID) for names in (["p2", "p9"], [])),
        without("plain", HEAD, ["p2", "p9"], PYRAMID),
        without("ocr", "MODEL.FPN.IN_FEATURES", ["res9"], "feature 'res9'"),
        without("ocr", "MODEL.RPN.IN_FEATURES", ["p9"], "feature 'p9'"),
        without("ocr", "MODEL.ROI_HEADS.IN_FEATURES", ["p9"], "feature 'p9'"),
        *(without("semantic", HEAD, names, STAGES) for names in (["layer9"], [])),
        without("semantic", HEAD_2, ["layer9"], STAGES),
        without("segfix", HEAD, ["layer9"], "expected features of"),
        ("segfix", (NAME, "ContextSemSegHead"), "ContextSemSegHead; SegFix needs SegFixHead"),
        ("ocr", (SCHEME, "GT-OCR"), "GroundTruthOCR .*needs the ground truth"),
        ("semantic", (SCHEME, "GT-OCR", "TEST.FLIP", True), "TEST.FLIP False"),
        ("semantic", (SCHEME, "ORC"), "expected none, OCR, DA-OCR"),
        ("semantic", ("MODEL.SEM_SEG_HEAD.CLASS_WEIGHTS", [1.0, 2.0]), "length 2, .* 5 classes"),
        ("semantic", ("MODEL.SEM_SEG_HEAD.COARSE_KERNEL", 2), "COARSE_KERNEL is 2; .*odd"),
        ("semantic", (NAME, "SemSegFPNHead"), "NAME is SemSegFPNHead; .* needs ContextSem"),
        *(
            ("semantic", (SCHEME, scheme, "MODEL.OCR.REGION_SUPERVISION", False), NO_REGIONS)
            for scheme in ("none", "GT-OCR", "Segmentation-Transformer")
        ),
        ("dilated", ("MODEL.RESNETS.DEPTH", 18), "18; .* 50, 101 and 152.*TIMM.NAME resnet18"),
        ("dilated", ("MODEL.RESNETS.STEM_TYPE", "basic"), "True needs .*RESNETS.STEM_TYPE deep"),
        ("hmsa", (SCHEME, "GT-OCR"), "MODEL.HMSA.ENABLED False"),
        *(("hmsa", ("TEST.SCALES", s), "TEST.SCALES is .* including 1.0") for s in SCALES),
    ],
)
def test_refused_models(small_cfg, kind, words, message):
    cfg = MAKERS[kind]() if kind in MAKERS else small_cfg(kind)
    cfg.merge_from_list([*map(str, words)])
    with pytest.raises(ValueError, match=message):
        build_model(cfg)
