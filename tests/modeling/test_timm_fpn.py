"""Networks of timm under Detectron2's FPN, in Panoptic-FPN with and without OCR."""

import pytest
import timm
import torch
from detectron2.modeling import build_backbone, build_model
from detectron2.utils.events import EventStorage
from timm.layers import Conv2dSame

from ocr_panoptic.modeling import deploy
from ocr_panoptic.modeling.timm_parts import EvenConv2dSame
from ocr_panoptic.modeling.timm_pyramids import TimmPyramid
from support.segmentors import make_cfg, trained_like

TIMM_FPN = ("MODEL.BACKBONE.NAME", "build_timm_fpn_backbone", "MODEL.TIMM.NORM", "BN")


@pytest.fixture
def timm_cfg(small_cfg):
    def make(name: str, head: str = "ocr", *opts: object):
        return small_cfg(head, *TIMM_FPN, "MODEL.TIMM.NAME", name, *map(str, opts))

    return make


# Channels by timm's documentation of these networks.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, channels",
    [
        ("tf_efficientnet_lite0", (24, 40, 112, 320)),
        ("convnext_atto", (40, 80, 160, 320)),
        ("mambaout_femto", (48, 96, 192, 288)),  # channels last
        ("hrnet_w18_small", (16, 32, 64, 128)),
        ("swin_tiny_patch4_window7_224", (96, 192, 384, 768)),
    ],
)
def test_the_stages_are_the_networks(name, channels):
    """Sizes that its windows do not divide, too."""
    backbone = TimmPyramid(name, norm="BN").eval()
    with torch.no_grad():
        features = backbone(torch.randn(1, 3, 64, 160))
    assert list(features) == ["res2", "res3", "res4", "res5"]
    for (key, y), c, stride in zip(features.items(), channels, (4, 8, 16, 32), strict=True):
        assert y.shape == (1, c, 64 // stride, 160 // stride)
        shape = backbone.output_shape()[key]
        assert (shape.channels, shape.stride) == (c, stride)


def test_the_features_are_timms_own():
    torch.manual_seed(0)
    source = timm.create_model("tf_efficientnet_lite0", features_only=True).eval()
    backbone = TimmPyramid("tf_efficientnet_lite0", norm="BN").eval()
    backbone.body.load_state_dict(source.state_dict())
    image = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        for y, expected in zip(backbone(image).values(), source(image)[1:], strict=True):
            assert torch.equal(y, expected)


def test_building_leaves_the_statistics_and_the_mode():
    backbone = TimmPyramid("tf_efficientnet_lite0", norm="BN")
    assert all(module.training for module in backbone.modules())
    assert not backbone.body.bn1.running_mean.any() and not backbone.body.bn1.num_batches_tracked


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, stride, message",
    [
        ("vit_tiny_patch16_224", 32, "has features of stride 16, and an FPN needs .* 4, 8, 16, 32"),
        ("resnet18", 8, "has features of stride 2, 4, 8, and .* with MODEL.TIMM.OUTPUT_STRIDE 32"),
        ("maxvit_nano_rw_256", 32, "does not take images of 96x160 .* divisible by window"),
        ("inception_v3", 32, r"has \(64, 45, 77\) as its feature .* stride 2 needs \(64, 48, 80\)"),
        ("no_such_network", 32, "MODEL.TIMM.NAME no_such_network"),
    ],
)
def test_networks_that_no_fpn_can_stand_on(name, stride, message):
    with pytest.raises(ValueError, match=message):
        TimmPyramid(name, output_stride=stride, norm="BN")


def test_features_of_the_config(timm_cfg):
    cfg = timm_cfg("tf_efficientnet_lite0", "ocr", "MODEL.FPN.IN_FEATURES", "['res3', 'res4']")
    with pytest.raises(ValueError, match=r"IN_FEATURES is \['res3', 'res4'\]; .* has \['res2', "):
        build_backbone(cfg)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["ocr", "plain"])
@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "convnext_atto", "hrnet_w18_small"])
def test_a_training_reaches_every_parameter_of_the_backbone(name, head, timm_cfg, batch):
    """DistributedDataParallel waits for the gradient of each."""
    torch.manual_seed(0)
    model = build_model(timm_cfg(name, head)).train()
    with EventStorage():
        losses = model(batch(2))
    assert ("loss_sem_seg_coarse" in losses) == (head == "ocr")
    assert all(loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    trained = {k: p for k, p in model.backbone.named_parameters() if p.requires_grad}
    assert len(trained) > 100
    assert [name for name, p in trained.items() if p.grad is None] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "convnext_atto"])
@torch.no_grad()
def test_the_copy_for_inference_is_equal(name, timm_cfg):
    torch.manual_seed(0)
    model = trained_like(build_model(timm_cfg(name))).double()
    fast = deploy(model).network
    assert not [m for m in fast.modules() if getattr(m, "running_var", None) is not None]
    even = {m.conv for m in fast.modules() if isinstance(m, EvenConv2dSame)}
    assert even == {m for m in fast.modules() if type(m) is Conv2dSame}
    image = torch.randn(1, 3, 64, 96).double()
    found, expected = fast.backbone(image), model.backbone(image)
    for key, reference in expected.items():
        torch.testing.assert_close(found[key], reference, rtol=1e-6, atol=1e-6)
    coarse = fast.sem_seg_head.layers(found)[0], model.sem_seg_head.layers(expected)[0]
    torch.testing.assert_close(*coarse, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("multiple, is_even", [(0, True), (1, False)])
def test_same_padding_is_constant_where_images_are_padded_to_multiples(multiple, is_even):
    """A semantic model at stride 16, on windows of several scales, none of a fitting size."""
    cfg = make_cfg(
        *("MODEL.TIMM.NAME", "tf_efficientnet_lite0", "MODEL.TIMM.OUTPUT_STRIDE", 16),
        *("MODEL.SEM_SEG_HEAD.IN_FEATURES", "['blocks.6']"),
        *("MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES", "['blocks.4']"),
        *("MODEL.PAD_TO_MULTIPLE", multiple, "TEST.SCALES", "[0.5, 0.9]"),
        *("TEST.SLIDING_WINDOW.SIZE", "[37, 45]", "TEST.SLIDING_WINDOW.STRIDE", "[30, 30]"),
    )
    torch.manual_seed(0)
    model = build_model(cfg).eval().double()
    fast = deploy(model).network
    assert any(isinstance(m, EvenConv2dSame) for m in fast.modules()) == is_even
    assert not any(isinstance(m, EvenConv2dSame) for m in model.modules())
    image = 255 * torch.rand(3, 61, 83, dtype=torch.float64)
    found, expected = (
        m.inference.scores(m.logits, m.normalised(image)[None], (61, 83), m.divisor)
        for m in (fast, model)
    )
    assert expected.std() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
