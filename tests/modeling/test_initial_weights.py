"""How the weights of the heads start: as in openseg.pytorch and HRNet-OCR, as PyTorch does."""

import math

import pytest
import torch
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_model
from segmentors import make_cfg
from torch import nn

from ocr_panoptic.layers import OCR, gather_regions
from ocr_panoptic.modeling import OCRSemSegFPNHead
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES

# As published, these start with their branch switched off.
ZERO = {"context.output.weight"}


def check_bounds(head: nn.Module, skip: tuple[str, ...] = ()) -> int:
    """Every convolution is U(-b, b), b = 1 / sqrt(fan in): the largest weight tells b."""
    checked = 0
    for name, module in head.named_modules():
        if not isinstance(module, nn.Conv2d) or name.startswith(skip):
            continue
        weight = module.weight.detach()
        if f"{name}.weight" in ZERO:
            assert not weight.any()
            continue
        bound = 1 / math.sqrt(weight[0].numel())
        assert 0.8 * bound < weight.abs().max() <= bound, name
        # c2_msra_fill and normal_ differ from it in shape, too: a uniform has std b / sqrt(3).
        assert weight.std() == pytest.approx(bound / math.sqrt(3), rel=0.25), name
        checked += 1
    return checked


@pytest.mark.parametrize("scheme", sorted(CONTEXT_SCHEMES))
def test_semantic_head(scheme):
    torch.manual_seed(0)
    head = build_model(make_cfg("MODEL.CONTEXT.NAME", scheme)).sem_seg_head
    assert check_bounds(head) >= 3  # the coarse branch and the two classifiers at least


@pytest.mark.parametrize("region_supervision", [True, False])
def test_panoptic_head(region_supervision):
    torch.manual_seed(0)
    shapes = {f"p{i}": ShapeSpec(channels=16, stride=2**i) for i in range(2, 6)}
    head = OCRSemSegFPNHead(
        shapes,
        num_classes=54,
        conv_dims=128,
        common_stride=4,
        norm="GN",
        ignore_value=255,
        context=OCR(32, 16, 32, norm="BN"),
        ocr_channels=32,
        ocr_norm="BN",
        region_supervision=region_supervision,
    )
    fpn_branches = ("p2", "p3", "p4", "p5")  # start as Detectron2's do
    assert check_bounds(head, skip=fpn_branches) >= 8 + (not region_supervision)


def test_regions_start_as_means_over_the_image():
    """
    With 11 classes and 128 features of unit size, Detectron2's start gives logits of std 3.8, and
    all regions the representation of a few random pixels; this one gives nearly the image's mean.
    """
    torch.manual_seed(0)
    head = build_model(
        make_cfg("MODEL.SEM_SEG_HEAD.NUM_CLASSES", 11, "MODEL.SEM_SEG_HEAD.COARSE_CHANNELS", 128)
    ).sem_seg_head
    features = torch.randn(1, 128, 18, 24).relu_()
    regions = head.coarse_predictor(features)
    weights = regions.detach().flatten(2).softmax(dim=2)
    effective = 1 / weights.square().sum(dim=2)  # number of pixels, were they weighted alike
    assert effective.min() > 0.8 * 18 * 24
    x = torch.randn(1, 4, 18, 24)
    mean = x.mean(dim=(2, 3))[:, :, None, None]
    assert (gather_regions(x, regions) - mean).abs().max() < 0.15
