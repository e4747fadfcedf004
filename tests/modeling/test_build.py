"""Models are Detectron2's, except for synchronised norms and boxes that are not rounded."""

import re

import pytest
import torch
from detectron2.layers.mask_ops import paste_masks_in_image
from detectron2.modeling.poolers import ROIPooler
from detectron2.structures import Boxes, Instances
from detectron2.structures.boxes import matched_pairwise_iou
from torch import nn

from ocr_panoptic.engine import Trainer
from ocr_panoptic.layers.conv import SYNCHRONISED
from ocr_panoptic.modeling import build_model, deploy
from support.segmentors import make_cfg, make_resnet_cfg

WIDTH = 1024


def x_ramps(stride: int) -> torch.Tensor:
    """
    Return ramps [1, 33, 8, w]: channel c is the column less w / 32 c.

    The map is exact in bfloat16, and so is the mean over a box in the channel that is near 0 there.
    """
    columns = torch.arange(WIDTH // stride, dtype=torch.float32)
    ramps = columns - torch.arange(33)[:, None] * (WIDTH // stride / 32)
    return ramps[:, None].expand(-1, WIDTH // stride, -1)[None]


def pooled_centres(pooler: nn.Module, boxes: torch.Tensor) -> torch.Tensor:
    """Return x of the boxes' centres in pixels, as read from features pooled in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        maps = [x_ramps(stride).bfloat16() for stride in (4, 8, 16, 32)]
        pooled = pooler(maps, [Boxes(boxes)])
    assert pooled.dtype == torch.bfloat16
    means = pooled.float().mean(dim=(2, 3))  # [R, 33], in columns of the box's level
    sides = boxes[:, 2] - boxes[:, 0]
    stride = 2 ** (4 + torch.log2(sides / 224)).floor().clamp(2, 5)
    channel = means.abs().argmin(dim=1)
    columns = means.gather(1, channel[:, None])[:, 0] + channel * (WIDTH / stride / 32)
    return (columns + 0.5) * stride


@pytest.mark.slow
@pytest.mark.parametrize("side", [24, 48, 96, 200])
@pytest.mark.parametrize("use", ["training", "TEST.PRECISION"])
@torch.no_grad()
def test_boxes_keep_their_precision_in_half_precision(small_cfg, use, side):
    """In bfloat16, coordinates of a box would be multiples of 4 from 512 on."""
    cfg = small_cfg("ocr", "TEST.PRECISION", "bfloat16")
    model = Trainer.build_model(cfg)
    network = model if use == "training" else deploy(model, "bfloat16").network
    heads = network.roi_heads
    lefts = torch.arange(40, WIDTH - side - 40, 13.7)
    boxes = torch.stack([lefts, lefts, lefts + side, lefts + side], dim=1)
    for pooler in (heads.box_pooler, heads.mask_pooler):
        error = (pooled_centres(pooler, boxes) - (lefts + side / 2)).abs().max()
        assert error < 0.1


@pytest.mark.parametrize("side", [24, 96, 512])
@torch.no_grad()
def test_deltas_in_half_precision_give_float32_boxes(small_cfg, side):
    """
    Boxes of any size keep 0.999 of their place.

    Anchors are exact, and deltas are rounded in units of a box's side. Only pooling and pasting,
    tested above and below, rounded pixels.
    """
    model = Trainer.build_model(small_cfg("ocr"))
    network = deploy(model, "bfloat16").network
    proposals, heads = network.proposal_generator, network.roi_heads
    maps = [torch.empty(1, 1, 800 // stride, 1344 // stride) for stride in (4, 8, 16, 32, 64)]
    exact = model.proposal_generator.anchor_generator(maps)
    with torch.autocast("cpu", torch.bfloat16):
        anchors = proposals.anchor_generator([map_.bfloat16() for map_ in maps])
    assert all(a.tensor.dtype == torch.float32 for a in anchors)
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(anchors, exact, strict=True))
    torch.manual_seed(0)
    centres, places, sizes = torch.rand(3, 1000, 2)
    centres, sizes = centres * torch.tensor([1333.0, 800.0]), side * (0.5 + sizes)
    boxes = torch.cat([centres - sizes / 2, centres + sizes / 2], dim=1)
    centres += side * (places - 0.5) / 2
    seen = torch.cat([centres - side / 2, centres + side / 2], dim=1)
    for transform in (proposals.box2box_transform, heads.box_predictor.box2box_transform):
        found = transform.apply_deltas(transform.get_deltas(seen, boxes).bfloat16(), seen)
        assert found.dtype == torch.float32
        overlap = matched_pairwise_iou(Boxes(found), Boxes(boxes))
        assert overlap.mean() > 0.998 and overlap.min() > 0.993


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


@pytest.mark.parametrize("names", [["p2", "p9"], []])
def test_missing_features(small_cfg, names):
    cfg = small_cfg("ocr", "MODEL.SEM_SEG_HEAD.IN_FEATURES", str(names))
    message = re.escape(f"IN_FEATURES is {names}, and the backbone has p2, p3, p4, p5, p6")
    with pytest.raises(ValueError, match=message):
        build_model(cfg)


@pytest.mark.parametrize(
    "key, names",
    [("IN_FEATURES", ["layer9"]), ("IN_FEATURES", []), ("COARSE_IN_FEATURES", ["layer9"])],
)
def test_missing_features_of_a_semantic_model(key, names):
    message = rf"SEM_SEG_HEAD.{key} is {re.escape(str(names))}, and the backbone has act1, layer1"
    with pytest.raises(ValueError, match=message):
        build_model(make_cfg(f"MODEL.SEM_SEG_HEAD.{key}", names))
