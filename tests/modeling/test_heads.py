"""
The semantic heads of both architectures.

A new head is added to HEADS and inherits the battery: its parts in their order, regions without
supervision, losses, the residual form, first weights.
"""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_model
from detectron2.modeling.meta_arch.semantic_seg import SemSegFPNHead
from torch import nn

from ocr_panoptic.layers import OCR, NoContext, one_hot_labels, resize
from ocr_panoptic.modeling import ContextSemSegHead, OCRSemSegFPNHead, refined_head
from ocr_panoptic.modeling.context import CONTEXT_SCHEMES, build_context
from support.segmentors import make_cfg, take_criterion

BILINEAR = {"mode": "bilinear", "align_corners": False}
# No two numbers of channels are equal, so that a test fails if they are mixed up.
SHAPES = {"res4": ShapeSpec(channels=26, stride=8), "res5": ShapeSpec(channels=29, stride=8)}
CHANNELS, KEY_CHANNELS, COARSE_CHANNELS = 33, 17, 22
FPN_SHAPES = {f"p{i}": ShapeSpec(channels=16, stride=2**i) for i in range(2, 6)}


def make_features(shapes=SHAPES, height: int = 64, width: int = 96) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(2, s.channels, height // s.stride, width // s.stride, generator=generator)
        for name, s in shapes.items()
    }


def make_targets() -> torch.Tensor:
    return torch.randint(0, 5, (2, 64, 96), generator=torch.Generator().manual_seed(1))


def make_head(shapes=SHAPES, **kwargs) -> ContextSemSegHead:
    torch.manual_seed(0)
    cfg = make_cfg("MODEL.CONTEXT.NAME", kwargs.pop("scheme", "OCR"), "MODEL.OCR.DROPOUT", 0.0)
    cfg.MODEL.OCR.CHANNELS, cfg.MODEL.OCR.KEY_CHANNELS = CHANNELS, KEY_CHANNELS
    arguments = dict(
        in_features=["res5"],
        coarse_in_features=["res4"],
        num_classes=5,
        context=build_context(cfg, SHAPES["res5"].channels),
        criterion=take_criterion(kwargs),
        ocr_channels=CHANNELS,
        ocr_norm="BN",
        coarse_channels=COARSE_CHANNELS,
        coarse_dropout=0.0,
    )
    return ContextSemSegHead(shapes, **{**arguments, **kwargs})


def make_plain_head(**kwargs) -> SemSegFPNHead:
    arguments = dict(num_classes=5, conv_dims=32, common_stride=4, norm="GN", ignore_value=255)
    return SemSegFPNHead(FPN_SHAPES, **{**arguments, **kwargs})


def make_fpn_head(**kwargs) -> OCRSemSegFPNHead:
    torch.manual_seed(0)
    kwargs = {"loss_weight": 0.25, "coarse_loss_weight": 0.25, **kwargs}
    arguments = dict(
        criterion=take_criterion(kwargs),
        context=OCR(CHANNELS, KEY_CHANNELS, 27, norm="BN", dropout=0.0),
        ocr_channels=CHANNELS,
        ocr_norm="BN",
    )
    return OCRSemSegFPNHead(make_plain_head(), **{**arguments, **kwargs})


def conv(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Compute a conv-norm-ReLU in evaluation mode by functional calls."""
    norm = module.norm
    y = F.conv2d(x, module.weight, padding=module.weight.shape[-1] // 2)
    return F.relu(F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias))


def linear(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, module.weight, module.bias)


def parts_of_semantic(head: nn.Module, features: dict) -> tuple:
    """Return the parts of the semantic head: coarse logits from stage 3, pixels from stage 4."""
    coarse = linear(head.coarse_predictor, conv(head.coarse[0], features["res4"]))
    regions = head.regions and linear(head.regions[1], conv(head.regions[0][0], features["res4"]))
    return coarse, features["res5"], regions


def parts_of_shared(head: nn.Module, features: dict) -> tuple:
    """Return the parts of a head whose coarse classifier sees the pixel representations."""
    x = conv(head.bottleneck, features["res5"])
    regions = head.regions and linear(head.regions[1], x)
    return linear(head.coarse_predictor, x), features["res5"], regions


def parts_of_panoptic(head: nn.Module, features: dict) -> tuple:
    """Return the parts of the panoptic head, which all use the sum of the FPN branches."""
    x = sum(getattr(head, name)(features[name]) for name in FPN_SHAPES)
    return linear(head.predictor, x), x, head.regions and linear(head.regions, x)


def parts_of_downsampled(head: nn.Module, features: dict) -> tuple:
    """Return the parts of the panoptic head whose pixels are means of 2x2 cells of the sum."""
    coarse, x, regions = parts_of_panoptic(head, features)
    n, c, h, w = x.shape
    return coarse, x.view(n, c, h // 2, 2, w // 2, 2).mean(dim=(3, 5)), regions


HEADS = {
    "semantic": (make_head, SHAPES, parts_of_semantic),
    "shared": (
        partial(make_head, coarse_in_features=[], coarse_kernel=0),
        {"res5": SHAPES["res5"]},
        parts_of_shared,
    ),
    "panoptic": (make_fpn_head, FPN_SHAPES, parts_of_panoptic),
    "downsampled": (partial(make_fpn_head, downsample=2), FPN_SHAPES, parts_of_downsampled),
}


@pytest.fixture(params=HEADS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def make(kind) -> Callable:
    return HEADS[kind][0]


@pytest.fixture
def features(kind) -> dict:
    return make_features(HEADS[kind][1])


class TestEveryHead:
    @pytest.mark.parametrize("supervision", [True, False])
    def test_equals_its_description(self, kind, make, features, supervision, monkeypatch):
        """The pixels pass a 3x3 convolution, the scheme and a 1x1; only the result is enlarged."""
        head = make(region_supervision=supervision).eval()
        with torch.no_grad():
            coarse, pixels, regions = HEADS[kind][2](head, features)
            assert (regions is None) == supervision
            m = F.interpolate(coarse if regions is None else regions, pixels.shape[2:], **BILINEAR)
            z = head.context(conv(head.bottleneck, pixels), m)
            refined = linear(head.refined_predictor, z)
            refined = F.interpolate(refined, coarse.shape[2:], **BILINEAR)
            found = head.layers(features)
            torch.testing.assert_close(found, (coarse, refined), rtol=0, atol=1e-5)
            assert not torch.allclose(*found)
            sizes = []
            monkeypatch.setattr(
                refined_head, "resize", lambda x, size, *o: sizes.append([*size]) or resize(x, size)
            )
            logits, losses = head(features)
        assert losses == {} and sizes.count([64, 96]) == 1 and logits.shape == (2, 5, 64, 96)
        expected = F.interpolate(refined, size=(64, 96), **BILINEAR)
        torch.testing.assert_close(logits, expected)

    def test_reach_of_the_losses_without_region_supervision(self, make, features):
        """The refined loss reaches the second branch, the coarse loss the first."""
        head = make(region_supervision=False).train()
        _, losses = head(features, make_targets())
        first = (head.coarse, head.coarse_predictor)
        for name, reached, spared in (
            ("loss_sem_seg", [head.regions], first),
            ("loss_sem_seg_coarse", first, [head.regions]),
        ):
            head.zero_grad()
            losses[name].backward(retain_graph=True)
            assert all(p.grad.abs().sum() > 0 for m in reached for p in m.parameters())
            assert all(p.grad is None for m in spared for p in m.parameters())
        shapes = [[p.shape for m in ms for p in m.parameters()] for ms in (first, [head.regions])]
        assert shapes[0] == shapes[1]

    def test_losses_and_their_weights(self, make, features):
        head = make(loss_weight=0.3, coarse_loss_weight=0.7).train()
        targets = make_targets()
        targets[:, :7] = 255
        result, losses = head(features, targets)
        assert result is None and set(losses) == {"loss_sem_seg", "loss_sem_seg_coarse"}
        coarse, refined = head.layers(features)
        for name, logits, weight in (("", refined, 0.3), ("_coarse", coarse, 0.7)):
            full = F.interpolate(logits, size=(64, 96), mode="bilinear", align_corners=False)
            expected = weight * F.cross_entropy(full, targets, ignore_index=255).item()
            assert losses[f"loss_sem_seg{name}"].item() == pytest.approx(expected, rel=1e-5)
        _, losses = head(features, torch.full_like(targets, 255))
        sum(losses.values()).backward()
        assert all(loss.item() == 0 for loss in losses.values())
        assert all(p.grad is None or p.grad.eq(0).all() for p in head.parameters())

    def test_gradients_reach_every_parameter_and_the_features(self, make, features):
        head = make().train()
        features = {k: v.requires_grad_() for k, v in features.items()}
        _, losses = head(features, torch.arange(5).repeat(2, 64, 20)[:, :, :96])
        sum(losses.values()).backward()
        assert [n for n, p in head.named_parameters() if not p.grad.abs().sum() > 0] == []
        assert all(f.grad.abs().sum() > 0 for f in features.values())

    def test_residual_logits_are_coarse_logits_plus_a_correction(self, make, features):
        head = make(residual=True).eval().double()
        assert not head.refined_predictor.weight.any() and not head.refined_predictor.bias.any()
        with torch.no_grad():
            nn.init.normal_(head.refined_predictor.weight)
            coarse, refined = head.layers({name: x.double() for name, x in features.items()})
            head.residual = False
            alone = head.layers({name: x.double() for name, x in features.items()})[1]
        assert alone.std() > 0.1
        torch.testing.assert_close(refined, coarse + alone, rtol=0, atol=1e-12)

    def test_starts_of_the_coarse_classifier(self, make):
        """PyTorch's weights lie within 1 / sqrt(C); others are N(0, 2 / C) and N(0, 2 / K)."""
        starts = ("pytorch", "he", "detectron2")
        small, *others = (make(coarse_start=start).coarse_predictor for start in starts)
        channels = small.in_channels
        assert small.weight.abs().max() <= channels**-0.5 and small.bias.any()
        for predictor, inputs in zip(others, (channels, 5), strict=True):
            assert predictor.weight.std().item() == pytest.approx((2 / inputs) ** 0.5, rel=0.15)
            assert not predictor.bias.any()


def assert_start(head: nn.Module, expected: set[str], skip: tuple[str, ...] = ()) -> None:
    """Check that weights and biases are U(-b, b) with b = 1 / sqrt(fan in), as published."""
    kinds, names = (nn.Conv2d, nn.Linear), set()
    for name, module in head.named_modules():
        if not isinstance(module, kinds) or name.startswith(skip):
            continue
        names.add(name)
        weight = module.weight.detach()
        if name == "context.output":  # as published, this branch starts at 0
            assert not weight.any()
            continue
        bound = 1 / math.sqrt(weight[0].numel())
        assert 0.8 * bound < weight.abs().max() <= bound, name
        assert weight.std() == pytest.approx(bound / math.sqrt(3), rel=0.25), name
        if module.bias is not None:
            assert 0 < module.bias.abs().max() <= bound, name
    assert expected <= names


@pytest.mark.slow
@pytest.mark.parametrize("scheme, supervision", [*((s, True) for s in CONTEXT_SCHEMES), ("OCR", 0)])
def test_first_weights_of_the_semantic_head(scheme, supervision):
    torch.manual_seed(0)
    opts = ("MODEL.CONTEXT.NAME", scheme, "MODEL.OCR.REGION_SUPERVISION", bool(supervision))
    expected = {"coarse.0", "coarse_predictor", "refined_predictor"}
    expected |= set() if supervision else {"regions.1"}
    assert_start(build_model(make_cfg(*opts)).sem_seg_head, expected)


@pytest.mark.parametrize("supervision", [True, False])
def test_first_weights_of_the_panoptic_head(supervision):
    head = make_fpn_head(region_supervision=supervision)
    expected = {"predictor", "bottleneck", "context.delta", "refined_predictor"}
    expected |= set() if supervision else {"regions"}
    assert_start(head, expected, skip=tuple(FPN_SHAPES))  # branches start as in Detectron2


@pytest.mark.parametrize("align_corners", [False, True])
def test_corners(align_corners):
    """All maps are resized in one way: features, regions, residual, full-size logits, losses."""
    shapes = {f"s{i}": ShapeSpec(channels=8, stride=4 * i) for i in (1, 2)}
    names = {"in_features": ["s2", "s1"], "coarse_in_features": ["s2"], "coarse_loss_weight": 0.4}
    head = make_head(shapes, **names, residual=True, align_corners=align_corners).eval()
    nn.init.normal_(head.refined_predictor.weight)
    features, targets = make_features(shapes), make_targets()

    def up(x, size):
        return F.interpolate(x, size=size, mode="bilinear", align_corners=align_corners)

    with torch.no_grad():
        coarse, refined = head.layers(features)
        x = torch.cat([features["s1"], up(features["s2"], (16, 24))], 1)
        expected = head.refined_predictor(head.context(head.bottleneck(x), up(coarse, (16, 24))))
        expected += up(coarse, (16, 24))
        torch.testing.assert_close(refined, expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(head(features)[0], up(refined, (64, 96)), rtol=0, atol=0)
        losses = head.losses((coarse, refined), targets)
    for name, weight, x in (("", 1.0, refined), ("_coarse", 0.4, coarse)):
        expected = weight * F.cross_entropy(up(x, (64, 96)), targets)
        torch.testing.assert_close(losses[f"loss_sem_seg{name}"], expected)


def test_a_scheme_that_takes_features_leaves_them_to_the_coarse_classifier():
    """PPM and a coarse prediction both see the features, without a 3x3 convolution."""
    head = make_head(scheme="PPM", coarse_in_features=[], coarse_kernel=0).eval()
    x = make_features()["res5"]
    with torch.no_grad():
        found, z = head.layers({"res5": x}), head.context(x, None)
    expected = linear(head.coarse_predictor, x), linear(head.refined_predictor, z)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    _, losses = head.train()({"res5": x}, make_targets())
    sum(losses.values()).backward()
    assert all(p.grad.any() for p in head.parameters())


# Scheme -> the shapes of a head's weights with 5 classes, 64 channels of features,
# MODEL.OCR.CHANNELS 34 and KEY_CHANNELS 22.
OCR_WEIGHTS = {
    **{"bottleneck": (34, 64, 3, 3), "refined_predictor": (5, 34, 1, 1)},
    **{f"context.{name}.0": (22, 34, 1, 1) for name in ("phi", "psi")},
    **{f"context.{name}.1": (22, 22, 1, 1) for name in ("phi", "psi")},
    **{"context.delta": (22, 34, 1, 1), "context.rho": (34, 22, 1, 1)},
    "context.g": (34, 34 + 34, 1, 1),
}
ASPP_WEIGHTS = {
    **{f"context.branches.{i}": (22, 64, k, k) for i, k in enumerate((1, 3, 3, 3))},
    **{"context.pooled": (22, 64, 1, 1), "context.g": (22, 5 * 22, 1, 1)},
    "refined_predictor": (5, 22, 1, 1),
}
WEIGHTS = {
    "none": {name: OCR_WEIGHTS[name] for name in ("bottleneck", "refined_predictor")},
    "OCR": OCR_WEIGHTS,
    "PPM": {
        **{f"context.transforms.{i}": (34, 64, 1, 1) for i in range(4)},
        **{"context.g": (34, 64 + 4 * 34, 3, 3), "refined_predictor": (5, 34, 1, 1)},
    },
    "PPM-OCR": {
        **OCR_WEIGHTS,
        **{f"context.transforms.{i}": (34 // 4, 34, 1, 1) for i in range(4)},
        "context.g": (34, 34 + 34 + 4 * (34 // 4), 1, 1),
    },
    "ASPP": ASPP_WEIGHTS,
    "ASP-OCR": {
        **{name: shape for name, shape in ASPP_WEIGHTS.items() if name != "context.pooled"},
        "context.bottleneck": (22, 64, 3, 3),
        **{f"context.{name}.0": (11, 22, 1, 1) for name in ("phi", "psi")},
        **{f"context.{name}.1": (11, 11, 1, 1) for name in ("phi", "psi")},
        **{"context.delta": (11, 22, 1, 1), "context.rho": (22, 11, 1, 1)},
    },
}


@pytest.mark.parametrize("scheme", WEIGHTS)
@pytest.mark.parametrize("head", [ContextSemSegHead, OCRSemSegFPNHead])
def test_every_number_of_channels_stands_where_its_key_says(head, scheme):
    cfg = make_cfg("MODEL.CONTEXT.NAME", scheme, "MODEL.OCR.CHANNELS", 34)
    cfg.MODEL.OCR.KEY_CHANNELS, own = 22, cfg.MODEL.SEM_SEG_HEAD
    if head is ContextSemSegHead:
        channels = {"layer2": 18, "layer3": 23, "layer4": 41}
        own.COARSE_IN_FEATURES, own.IN_FEATURES = ["layer2"], ["layer3", "layer4"]
        own.COARSE_CHANNELS = 26
        expected = {"coarse.0": (26, 18, 3, 3), "coarse_predictor": (5, 26, 1, 1)}
    else:
        channels = dict.fromkeys(FPN_SHAPES, 19)
        own.IN_FEATURES, own.CONVS_DIM = [*FPN_SHAPES], 64
        expected = {"predictor": (5, 64, 1, 1)}
    shapes = {
        name: ShapeSpec(channels=c, stride=FPN_SHAPES[name].stride if name in FPN_SHAPES else 8)
        for name, c in channels.items()
    }
    built = head(cfg, shapes).train()
    found = {
        name.removesuffix(".weight"): tuple(p.shape)
        for name, p in built.named_parameters()
        if p.dim() == 4 and not name.startswith(tuple(FPN_SHAPES))
    }
    assert found == expected | WEIGHTS[scheme]
    _, losses = built(make_features(shapes), make_targets())
    assert all(loss.isfinite() for loss in losses.values())


@pytest.mark.parametrize("scheme", ["none", "GT-OCR"])
def test_schemes_without_predicted_regions(scheme):
    head, features = make_head(scheme=scheme).eval(), make_features()
    with torch.no_grad():
        x = conv(head.bottleneck, features["res5"])
        truth = one_hot_labels(make_targets(), 5, 255, (8, 12))
        z = x if scheme == "none" else head.context(x, truth)
        refined = head.layers(features, make_targets())[1]
    torch.testing.assert_close(refined, linear(head.refined_predictor, z), rtol=0, atol=1e-5)


def test_the_coarse_branch_of_the_panoptic_head_equals_detectron2s():
    head, features = make_fpn_head(coarse_loss_weight=0.25), make_features(FPN_SHAPES)
    plain, targets = make_plain_head(), make_targets()
    plain.load_state_dict({k: head.state_dict()[k] for k in plain.state_dict()})
    assert type(plain) is SemSegFPNHead
    expected = plain.layers(features)
    torch.testing.assert_close(head.layers(features)[0], expected, rtol=0, atol=1e-6)
    loss = head.train()(features, targets)[1]["loss_sem_seg_coarse"]
    expected = 0.25 * plain.losses(expected, targets)["loss_sem_seg"]
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)


def test_region_supervision_needs_regions():
    with pytest.raises(ValueError, match="predicted regions, but NoContext does not use any"):
        make_fpn_head(region_supervision=False, context=NoContext(32))
