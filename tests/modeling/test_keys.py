"""Every key has an effect in each architecture that reads it, and is refused in the others."""

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_model

from ocr_panoptic.config.keys import KEYS, SCHEME, THEIRS, Key
from ocr_panoptic.config.rules import schemes_reading, value_of
from ocr_panoptic.config.unread import check_unread_keys, conditions
from ocr_panoptic.modeling import OCRSemSegFPNHead
from ocr_panoptic.modeling.losses import LOSSES
from support.loaded_configs import load
from support.segmentors import (
    make_batch,
    make_cfg,
    make_offsets_batch,
    make_resnet_cfg,
    make_segfix_cfg,
)

TESTS = Path(__file__).resolve().parents[1]
HEAD = "MODEL.SEM_SEG_HEAD"
ViT = (
    *("MODEL.TIMM.NAME", "test_vit", "MODEL.TIMM.OUTPUT_STRIDE", 32),
    *(f"{HEAD}.IN_FEATURES", "['blocks.5']", f"{HEAD}.COARSE_IN_FEATURES", "['blocks.5']"),
)
STAGES = "['stage1', 'stage2', 'stage3', 'stage4']"
HRNET = (
    *("MODEL.TIMM.NAME", "hrnet_w18_small", "MODEL.TIMM.OUTPUT_STRIDE", 32),
    *(f"{HEAD}.IN_FEATURES", STAGES, f"{HEAD}.COARSE_IN_FEATURES", STAGES),
)
OHEM = (f"{HEAD}.LOSS_TYPE", "ohem", f"{HEAD}.OHEM_THRESHOLD", 0.2)
SUM = "0.5 cross_entropy + 2 dice"

# Key -> other values, for keys whose double or contrary is not allowed or has no effect.
VALUES = {
    "MODEL.OCR.NORM": ["FrozenBN"],
    "MODEL.OCR.COARSE_START": ["he", "detectron2"],
    "MODEL.OCR.NEGATIVE_SLOPE": [0.01],
    "MODEL.CONTEXT.NAME": ["none"],
    "MODEL.CONTEXT.DECODER_SELF_ATTENTION": ["before", "after"],
    "MODEL.CONTEXT.DILATIONS": [[1, 2, 3]],
    "MODEL.CONTEXT.TRUE_PART": ["gather", "relation"],
    f"{HEAD}.CLASS_WEIGHTS": ["[1.0, 1.0, 1.0, 1.0, 9.0]"],
    f"{HEAD}.LOSS_TYPE": [SUM, *(name for name in LOSSES if name not in ("cross_entropy", "ohem"))],
    f"{HEAD}.COARSE_LOSS_TYPE": [SUM, "ohem"],
    f"{HEAD}.OHEM_THRESHOLD": [0.1],
    f"{HEAD}.OHEM_MIN_KEPT": [9],
    f"{HEAD}.COARSE_IN_FEATURES": ["['layer2']"],
    f"{HEAD}.COARSE_KERNEL": [1],
    "MODEL.TIMM.NAME": ["resnet34"],
    "MODEL.TIMM.OUTPUT_STRIDE": [16],
    "MODEL.TIMM.NORM": ["FrozenBN"],
    "MODEL.TIMM.OUTPUT_NORM": ["LN"],
    "MODEL.TIMM.PATCH_SIZE": [8],
    "MODEL.TIMM.DROP_PATH": [0.9],
    "MODEL.SEGFIX.NORM": ["FrozenBN"],
    "MODEL.RESNETS.RES4_DILATION": [2],
    "MODEL.RESNETS.RES5_MULTI_GRID": ["[1, 2, 4]"],
    "MODEL.RESNETS.STEM_TYPE": ["basic"],
}
# Key -> further settings that it needs, except a scheme that reads the key.
SETTINGS = {
    "MODEL.OCR.NEGATIVE_SLOPE": [(), ("MODEL.CONTEXT.NAME", "PPM")],
    f"{HEAD}.COARSE_LOSS_TYPE": [(f"{HEAD}.OHEM_MIN_KEPT", 9, f"{HEAD}.OHEM_THRESHOLD", 0.1)],
    f"{HEAD}.OHEM_THRESHOLD": [(*OHEM, f"{HEAD}.OHEM_MIN_KEPT", 9)],
    f"{HEAD}.OHEM_MIN_KEPT": [OHEM],
    "MODEL.TIMM.PATCH_SIZE": [ViT],
    "MODEL.TIMM.ENLARGE_TWICE": [HRNET],
    "MODEL.HMSA.SCALE_LOSS_WEIGHT": [("MODEL.HMSA.ENABLED", True)],
}
# Keys for the trainer, for the mapper, or that change the cost but not the result.
NOT_IN_THE_LOSSES = {
    *("MODEL.DEVICE", "MODEL.TRUST_PICKLE", "MODEL.WEIGHTS_MIN_SHARE", "MODEL.WEIGHTS_BY_CLASS"),
    *("MODEL.EMA.ENABLED", "MODEL.EMA.DECAY", "MODEL.OCR.RECOMPUTE"),
    "MODEL.SEGFIX.BOUNDARY_DISTANCE",
    "MODEL.PANOPTIC_FPN.COMBINE.CLASS_CONFIDENCE",
    "MODEL.PANOPTIC_FPN.COMBINE.CLASS_STUFF_AREA",
}
OWN = [key for key in KEYS if key.default is not THEIRS]
IN_THE_LOSSES = [k for k in OWN if k.name.startswith("MODEL.") and k.name not in NOT_IN_THE_LOSSES]


def make_panoptic_cfg(*opts: object) -> CfgNode:
    cfg = load("quick_schedules/panoptic_fpn_ocr_R_18_scenes", *map(str, opts)).clone()
    cfg.defrost()
    cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES = 5
    if cfg.MODEL.OCR.NORM == "SyncBN":
        cfg.MODEL.OCR.NORM = "BN"
    return cfg


def make_dilated_cfg(*opts: object) -> CfgNode:
    cfg = make_resnet_cfg(50)
    cfg.MODEL.RESNETS.RES4_DILATION = 1  # its default
    cfg.merge_from_list([str(o) for o in opts])
    return cfg


def make_deep_segfix_cfg(*opts: object) -> CfgNode:
    return make_segfix_cfg(f"{HEAD}.IN_FEATURES", "['layer4', 'layer1']", *opts)


def panoptic_head(cfg: CfgNode) -> dict[str, torch.Tensor]:
    strides = {"p2": 4, "p3": 8, "p4": 16, "p5": 32}
    head = OCRSemSegFPNHead(cfg, {k: ShapeSpec(channels=16, stride=s) for k, s in strides.items()})
    torch.manual_seed(1)
    features = {name: torch.randn(2, 16, 64 // s, 96 // s) for name, s in strides.items()}
    return head.train()(features, torch.randint(0, 5, (2, 64, 96)))[1]


def segmentor(cfg: CfgNode, batch: Callable = make_batch) -> dict[str, torch.Tensor]:
    model = build_model(cfg).train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.data.fill_(1)  # timm's residual branches start at 0
    torch.manual_seed(1)
    return model(batch())


# Architecture -> function that makes its config, and function that returns its losses.
ARCHITECTURES = {
    "panoptic": (make_panoptic_cfg, panoptic_head),
    "semantic": (make_cfg, segmentor),
    "dilated": (make_dilated_cfg, segmentor),
    "segfix": (make_deep_segfix_cfg, functools.partial(segmentor, batch=make_offsets_batch)),
}


@functools.cache
def losses(architecture: str, *opts: object) -> list[float]:
    make, compute = ARCHITECTURES[architecture]
    torch.manual_seed(0)
    return [loss.item() for loss in compute(make(*opts)).values()]


def settings(key: Key) -> list[tuple]:
    if SCHEME in key.read_by:
        return [("MODEL.CONTEXT.NAME", name) for name in schemes_reading(key.name)]
    return SETTINGS.get(key.name, [()])


def other_values(key: Key, cfg: CfgNode) -> list:
    value = value_of(cfg, key.name)
    return VALUES.get(key.name) or [
        not value if isinstance(value, bool) else 2 * value or type(value)(1)
    ]


def cases() -> Iterator:
    for architecture, (make, _) in ARCHITECTURES.items():
        plain = make()
        for key in IN_THE_LOSSES:
            if architecture == "dilated" and "RESNETS" not in key.name:
                continue  # the other semantic model covers it
            for base in settings(key):
                if architecture == "panoptic" and "GT-OCR" in base:
                    continue  # this architecture lacks it
                for value in other_values(key, plain):
                    name = "-".join(map(str, (architecture, key.name, value, *base)))
                    marks = pytest.mark.slow if architecture != "panoptic" else ()
                    yield pytest.param(architecture, key, str(value), base, id=name, marks=marks)


@pytest.mark.parametrize("architecture, key, value, base", cases())
def test_a_key_changes_the_losses_or_is_refused(architecture, key, value, base, caplog):
    opts = (*base, key.name, value)
    cfg = ARCHITECTURES[architecture][0](*opts)
    unmet = [condition for condition in conditions(key) if not condition.holds(cfg)]
    if not unmet:
        assert losses(architecture, *opts) != losses(architecture, *base)
    elif any(condition.refuses for condition in unmet):
        with pytest.raises(ValueError, match=f"  {key.name} is .*; it has an effect only with "):
            check_unread_keys(cfg)
    else:
        with suppress(ValueError):  # SegFix reads none of the other keys
            check_unread_keys(cfg)
        assert key.name in caplog.text


@pytest.mark.slow
def test_every_key_is_tested():
    """A key is read by a model above, or set in another test."""
    tests = "".join(path.read_text() for path in TESTS.rglob("*.py") if path != Path(__file__))
    for key in OWN:
        if key in IN_THE_LOSSES:
            configs = [make(*base) for make, _ in ARCHITECTURES.values() for base in settings(key)]
            assert any(all(c.holds(cfg) for c in conditions(key)) for cfg in configs), key.name
        else:
            assert key.name in tests
