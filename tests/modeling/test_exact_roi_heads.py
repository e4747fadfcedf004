"""Boxes and masks are not rounded; several threads and TorchScript change no result."""

import copy

import pytest
import torch
from detectron2.config import get_cfg
from detectron2.export.torchscript_patch import freeze_training_mode, patch_instances
from detectron2.layers import ShapeSpec
from detectron2.layers.mask_ops import paste_masks_in_image
from detectron2.modeling import StandardROIHeads, build_model
from detectron2.modeling.poolers import ROIPooler
from detectron2.structures import Boxes, ImageList, Instances
from detectron2.utils.testing import assert_instances_allclose

from ocr_panoptic.modeling import ExactROIHeads, ExactROIPooler, deploy


@pytest.mark.slow
@torch.no_grad()
def test_boxes_keep_their_precision_in_half_precision(small_cfg):
    """In bfloat16, Detectron2 rounds coordinates to multiples of 4 from 512 on."""
    model = build_model(small_cfg("ocr"))
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
    head = build_model(small_cfg("ocr")).roi_heads.mask_head.eval()
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


@torch.no_grad()
def test_several_threads_pool_boxes_like_one(small_cfg):
    pooler = build_model(small_cfg("ocr")).roi_heads.box_pooler
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


SCALES = [(1 / 16,), (1 / 4, 1 / 8, 1 / 16)]


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("kind", ["ROIAlign", "ROIAlignV2"])
def test_pooler_in_torchscript(scales, kind):
    """As Detectron2's test of its ROIPooler, whose results are expected."""
    torch.manual_seed(0)
    maps = [torch.randn(2, 3, int(160 * scale), int(240 * scale)) for scale in scales]
    boxes = 80 * torch.rand(9, 4)
    boxes[:, 2:] += boxes[:, :2]
    lists = [Boxes(part) for part in boxes.split([4, 5])]
    pooler = ExactROIPooler(7, scales, 0, kind)
    scripted = torch.jit.script(pooler)
    assert torch.equal(scripted(maps, lists), ROIPooler(7, scales, 0, kind)(maps, lists))
    half = [map_.bfloat16() for map_ in maps]
    assert torch.equal(scripted(half, lists), pooler(half, lists))


@torch.no_grad()
def test_heads_in_torchscript():
    """As Detectron2's test of StandardROIHeads, whose results with equal weights are expected."""
    cfg = get_cfg()
    cfg.MODEL.MASK_ON = cfg.MODEL.KEYPOINT_ON = True  # TorchScript needs both heads
    cfg.MODEL.ROI_HEADS.IN_FEATURES = ["p2", "p3"]
    cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.MODEL.ROI_HEADS.SCORE_THRESH_TEST = 3, 0.01
    cfg.MODEL.ROI_BOX_HEAD.update(NAME="FastRCNNConvFCHead", NUM_FC=2, FC_DIM=16)
    cfg.MODEL.ROI_MASK_HEAD.update(NAME="MaskRCNNConvUpsampleHead", NUM_CONV=2, CONV_DIM=8)
    cfg.MODEL.ROI_KEYPOINT_HEAD.CONV_DIMS = (8,)
    shapes = {"p2": ShapeSpec(channels=5, stride=4), "p3": ShapeSpec(channels=5, stride=8)}
    torch.manual_seed(0)
    theirs = StandardROIHeads(cfg, shapes).eval()
    cfg.MODEL.ROI_MASK_HEAD.NAME = "ExactMaskHead"
    ours = ExactROIHeads(cfg, shapes).eval()
    ours.load_state_dict(theirs.state_dict())
    sizes = [(40, 56), (64, 48)]
    features = {
        name: torch.randn(2, 5, 64 // s.stride, 64 // s.stride) for name, s in shapes.items()
    }
    proposals = []
    for size in sizes:
        boxes = torch.tensor([[1.0, 2, 9, 30], [5, 5, 40, 36], [0, 0, 7, 7]])
        found = Instances(size, proposal_boxes=Boxes(boxes), objectness_logits=torch.rand(3))
        proposals.append(found)
    images = ImageList(torch.zeros(2, 3, 64, 64), sizes)
    expected, _ = theirs(images, features, copy.deepcopy(proposals))
    assert sum(map(len, expected)) > 5
    fields = {name: torch.Tensor for name in ("objectness_logits", "pred_classes", "scores")}
    fields |= {"pred_masks": torch.Tensor, "proposal_boxes": Boxes, "pred_boxes": Boxes}
    fields |= {"pred_keypoints": torch.Tensor, "pred_keypoint_heatmaps": torch.Tensor}
    with freeze_training_mode(ours), patch_instances(fields) as instances:
        scripted = torch.jit.script(ours)
        found, _ = scripted(images, features, [instances.from_instances(p) for p in proposals])
        for one, other in zip(expected, found, strict=True):
            assert_instances_allclose(one, other, rtol=0)
