"""Models are Detectron2's, except for synchronised norms and boxes that are not rounded."""

import re

import pytest
import torch
from detectron2.layers.mask_ops import paste_masks_in_image
from detectron2.modeling.poolers import ROIPooler
from detectron2.structures import Boxes, Instances
from torch import nn

from ocr_panoptic.layers.conv import SYNCHRONISED
from ocr_panoptic.modeling import build_model, deploy
from support.segmentors import make_cfg, make_resnet_cfg
from train_net import Trainer


@pytest.mark.slow
@torch.no_grad()
def test_boxes_keep_their_precision_in_half_precision(small_cfg):
    """In bfloat16, Detectron2 rounds coordinates to multiples of 4 from 512 on."""
    model = Trainer.build_model(small_cfg("ocr"))
    maps = [torch.randn(1, 8, 256 // s, 1024 // s).bfloat16() for s in (4, 8, 16, 32)]
    lefts, sides = torch.arange(40, 760, 13.7), torch.tensor([24.0, 48, 96, 200]).repeat(14)[:53]
    boxes = Boxes(torch.stack([lefts, lefts / 20, lefts + sides, lefts / 20 + sides], dim=1))
    for network in (model, deploy(model, "bfloat16").network):
        for pooler in (network.roi_heads.box_pooler, network.roi_heads.mask_pooler):
            exact = ROIPooler.forward(pooler, [map_.float() for map_ in maps], [boxes])
            assert torch.equal(pooler(maps, [boxes]), exact.bfloat16())


@torch.no_grad()
def test_masks_are_pasted_at_exact_places(small_cfg):
    """Masks begin with the 23rd of their 28 columns, in boxes of 800 pixels."""
    head = Trainer.build_model(small_cfg("ocr")).roi_heads.mask_head.eval()
    for parameter in head.parameters():
        parameter.zero_()
    head.mask_fcn1.weight[0, 0, 1, 1] = head.mask_fcn2.weight[0, 0, 1, 1] = 1
    head.deconv.weight[0, 0] = 1
    head.predictor.weight[:, 0], head.predictor.bias[:] = 8, -8 * 10.5
    columns = torch.zeros(12, 128, 14, 14)
    columns[:, 0] = torch.arange(14.0)
    lefts = torch.linspace(0.3, 90, 12)
    boxes = Boxes(torch.stack([lefts, lefts, lefts + 800, lefts + 800], dim=1))
    found = Instances((900, 900), pred_boxes=boxes, pred_classes=torch.zeros(12).long())
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = head(columns, [found])
        masks = paste_masks_in_image(found.pred_masks[:, 0], boxes, (900, 900))
    first = masks[:, 450].int().argmax(dim=1)
    assert (first - (lefts + 800 * 22 / 28)).abs().max() < 0.51


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


@torch.no_grad()
def test_several_threads_pool_boxes_like_one(small_cfg):
    pooler = Trainer.build_model(small_cfg("ocr")).roi_heads.box_pooler
    torch.manual_seed(0)
    maps = [torch.randn(1, 3, 128 // stride, 192 // stride) for stride in (4, 8, 16, 32)]
    boxes = 100 * torch.rand(37, 4)
    boxes[:, 2:] += boxes[:, :2]
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(pooler(maps, [Boxes(boxes)]))
    finally:
        torch.set_num_threads(1)
    assert torch.equal(*found) and torch.equal(
        found[0], ROIPooler.forward(pooler, maps, [Boxes(boxes)])
    )


HEAD, PYRAMID, STAGES = "SEM_SEG_HEAD.IN_FEATURES", "has p2, p3, p4, p5, p6", "has act1, layer1"


@pytest.mark.parametrize(
    "head, key, names, fact",
    [
        *(("ocr", HEAD, ["p2", "p9"], PYRAMID), ("ocr", HEAD, [], PYRAMID)),
        ("plain", HEAD, ["p2", "p9"], PYRAMID),
        ("ocr", "FPN.IN_FEATURES", ["res9"], "no 'res9'"),
        *(("ocr", f"{part}.IN_FEATURES", ["p9"], "no 'p9'") for part in ("RPN", "ROI_HEADS")),
        *(("semantic", HEAD, ["layer9"], STAGES), ("semantic", HEAD, [], STAGES)),
        ("semantic", "SEM_SEG_HEAD.COARSE_IN_FEATURES", ["layer9"], STAGES),
    ],
)
def test_missing_features(small_cfg, head, key, names, fact):
    opts = f"MODEL.{key}", str(names)
    cfg = make_cfg(*opts) if head == "semantic" else small_cfg(head, *opts)
    with pytest.raises(ValueError, match=rf"{key} is {re.escape(str(names))}.*{fact}"):
        build_model(cfg)
