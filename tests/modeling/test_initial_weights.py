"""How the weights of the heads start: as in openseg.pytorch and HRNet-OCR, as PyTorch does."""

import math

import pytest
import torch
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.layers import OCR, gather_regions
from ocr_panoptic.modeling import OCRSemSegFPNHead
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES
from support.heads import make_plain_head
from support.segmentors import make_cfg, take_criterion

# As published, this one starts with its branch switched off.
ZERO = {"context.output"}


def assert_start(head: nn.Module, skip: tuple[str, ...] = ()) -> list[str]:
    """
    Weight and bias of every convolution and linear layer are U(-b, b), b = 1 / sqrt(fan in):
    c2_msra_fill and normal_ differ in size, in shape (a uniform has std b / sqrt(3)), or in the
    bias, which they leave at 0. Returns the names of the layers.
    """
    names = []
    for name, module in head.named_modules():
        if not isinstance(module, (nn.Conv2d, nn.Linear)) or name.startswith(skip):
            continue
        names.append(name)
        weight = module.weight.detach()
        if name in ZERO:
            assert not weight.any()
            continue
        bound = 1 / math.sqrt(weight[0].numel())
        assert 0.8 * bound < weight.abs().max() <= bound, name
        assert weight.std() == pytest.approx(bound / math.sqrt(3), rel=0.25), name
        if module.bias is not None:
            assert 0 < module.bias.abs().max() <= bound, name
    return names


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme, supervision",
    [(scheme, True) for scheme in CONTEXT_SCHEMES]
    + [(scheme, False) for scheme in ("OCR", "DA-OCR", "ACF-OCR", "ASP-OCR")],
)
def test_semantic_head(scheme, supervision):
    torch.manual_seed(0)
    opts = ("MODEL.CONTEXT.NAME", scheme, "MODEL.OCR.REGION_SUPERVISION", supervision)
    names = assert_start(build_model(make_cfg(*opts)).sem_seg_head)
    assert {"coarse.0", "coarse_predictor", "refined_predictor"} <= set(names)
    assert ("regions.1" in names) == (not supervision)


@pytest.mark.parametrize("supervision", [True, False])
def test_panoptic_head(supervision):
    torch.manual_seed(0)
    head = OCRSemSegFPNHead(
        make_plain_head(num_classes=54, conv_dims=128),
        criterion=take_criterion({}, 54),
        context=OCR(32, 16, 32, norm="BN"),
        ocr_channels=32,
        ocr_norm="BN",
        region_supervision=supervision,
    )
    fpn_branches = ("p2", "p3", "p4", "p5")  # start as Detectron2's do
    names = assert_start(head, skip=fpn_branches)
    assert {"predictor", "bottleneck", "context.delta", "refined_predictor"} <= set(names)
    assert ("regions" in names) == (not supervision)


def test_regions_start_as_means_over_the_image():
    """
    With 11 classes and 128 features, Detectron2's start gives logits of std 3, and each region the
    representation of a few random pixels; this one gives nearly the image's mean.
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
