"""Every config key of the semantic-only architecture has an effect."""

import pytest
import torch
from detectron2.config import CfgNode, get_cfg
from detectron2.modeling import build_backbone, build_model
from segmentors import make_batch, make_cfg, make_resnet_cfg

from ocr_panoptic import add_ocr_config

OHEM = ("MODEL.SEM_SEG_HEAD.LOSS_TYPE", "ohem")
TRANSFORMER = ("MODEL.CONTEXT.NAME", "Segmentation-Transformer")
JOINT = ("MODEL.CONTEXT.NAME", "Joint-Transformer")
KEYS = [
    ("ALIGN_CORNERS", True, ()),
    ("PAD_TO_MULTIPLE", 1, ()),
    ("OCR.NEGATIVE_SLOPE", 0.01, ()),
    ("CONTEXT.NAME", "none", ()),
    ("CONTEXT.ENCODER_SELF_ATTENTION", True, TRANSFORMER),
    ("CONTEXT.DECODER_SELF_ATTENTION", "before", TRANSFORMER),
    ("CONTEXT.DECODER_SELF_ATTENTION", "after", TRANSFORMER),
    ("CONTEXT.JOINT_BLOCKS", 3, JOINT),
    ("CONTEXT.DILATIONS", [1, 2, 3], ("MODEL.CONTEXT.NAME", "ASPP")),
    ("CONTEXT.DILATIONS", [1, 2, 3], ("MODEL.CONTEXT.NAME", "ASP-OCR")),
    ("CONTEXT.NUM_REGIONS", 8, ("MODEL.CONTEXT.NAME", "Double-Attention")),
    ("SEM_SEG_HEAD.COARSE_IN_FEATURES", "['layer2']", ()),
    ("SEM_SEG_HEAD.COARSE_KERNEL", 1, ()),
    ("SEM_SEG_HEAD.COARSE_CHANNELS", 40, ()),
    ("SEM_SEG_HEAD.COARSE_DROPOUT", 0.9, ()),
    ("SEM_SEG_HEAD.CLASS_WEIGHTS", "[1.0, 1.0, 1.0, 1.0, 9.0]", ()),
    ("SEM_SEG_HEAD.LOSS_TYPE", "ohem", ("MODEL.SEM_SEG_HEAD.OHEM_MIN_KEPT", 10)),
    ("SEM_SEG_HEAD.OHEM_THRESHOLD", 0.1, (*OHEM, "MODEL.SEM_SEG_HEAD.OHEM_MIN_KEPT", 10)),
    ("SEM_SEG_HEAD.OHEM_MIN_KEPT", 999, (*OHEM, "MODEL.SEM_SEG_HEAD.OHEM_THRESHOLD", 0.01)),
    ("TIMM.NAME", "resnet34", ()),
    ("TIMM.OUTPUT_STRIDE", 16, ()),
    ("TIMM.NORM", "FrozenBN", ()),
]
RESNET_KEYS = [
    ("RES4_DILATION", 1),
    ("RES5_MULTI_GRID", "[1, 2, 4]"),
    ("STEM_TYPE", "basic"),
    ("CONTRACT_DILATION", True),
    ("STEM_CEIL_MODE", True),
]


def losses(cfg: CfgNode) -> list[float]:
    torch.manual_seed(0)
    model = build_model(cfg).train()
    torch.manual_seed(1)
    return [loss.item() for loss in model(make_batch()).values()]


@pytest.mark.parametrize("key, value, base", KEYS)
def test_every_key_changes_the_losses(key, value, base):
    assert losses(make_cfg(*base, f"MODEL.{key}", value)) != losses(make_cfg(*base))


@pytest.mark.parametrize("key, value", RESNET_KEYS)
def test_every_key_of_the_dilated_resnet_changes_its_features(key, value):
    def features(*opts: object) -> torch.Tensor:
        cfg = make_resnet_cfg(50)
        cfg.merge_from_list([str(o) for o in opts])
        torch.manual_seed(0)
        backbone = build_backbone(cfg).eval()
        return backbone(torch.ones(1, 3, 64, 64).cumsum(2))["res5"].detach()

    changed, plain = features(f"MODEL.RESNETS.{key}", value), features()
    assert changed.shape != plain.shape or not torch.allclose(changed, plain)


def test_no_key_is_left_out():
    before, after = get_cfg(), get_cfg()
    add_ocr_config(after)
    added = {
        f"{node}.{key}"
        for node in ("CONTEXT", "SEM_SEG_HEAD", "TIMM")
        for key in set(after.MODEL[node]) - set(before.MODEL.get(node, ()))
    }
    added |= {"ALIGN_CORNERS", "PAD_TO_MULTIPLE", "OCR.NEGATIVE_SLOPE"}
    assert {key for key, _, _ in KEYS} == added
    resnets = set(after.MODEL.RESNETS) - set(before.MODEL.RESNETS)
    assert {key for key, _ in RESNET_KEYS} == resnets
