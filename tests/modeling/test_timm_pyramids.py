"""Networks of timm under Detectron2's pyramids, in both architectures, with and without OCR."""

import pytest
import torch
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_backbone, build_model
from detectron2.modeling.backbone import SimpleFeaturePyramid
from detectron2.modeling.backbone.fpn import LastLevelMaxPool
from detectron2.modeling.backbone.vit import ViT
from detectron2.utils.events import EventStorage
from timm.layers import Conv2dSame

from ocr_panoptic.modeling import deploy
from ocr_panoptic.modeling.timm_parts import EvenConv2dSame
from support.segmentors import make_batch, make_cfg, trained_like

TIMM_FPN = ("MODEL.BACKBONE.NAME", "build_timm_fpn_backbone", "MODEL.TIMM.NORM", "BN")


@pytest.fixture
def timm_cfg(small_cfg):
    return lambda name: small_cfg("ocr", *TIMM_FPN, "MODEL.TIMM.NAME", name)


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
def test_same_padding_is_constant_if_images_are_padded_to_multiples(multiple, is_even):
    """A semantic model at stride 16 sees windows of several scales, whose sizes do not fit."""
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


NETWORK = (
    *("MODEL.BACKBONE.NAME", "build_timm_simple_fpn_backbone", "MODEL.TIMM.NAME", "test_vit"),
    *("MODEL.FPN.IN_FEATURES", "['blocks.3']", "MODEL.FPN.NORM", "LN"),
)
LEVELS = "['p2', 'p3', 'p4', 'p5']"


@pytest.fixture
def vit_cfg(small_cfg):
    return lambda *opts: small_cfg("ocr", *NETWORK, *opts)


@torch.no_grad()
def test_the_pyramid_equals_detectron2s(vit_cfg):
    torch.manual_seed(0)
    backbone = build_backbone(vit_cfg("MODEL.FPN.NORM", "")).eval()  # LN, as with LN
    reference = SimpleFeaturePyramid(
        ViT(img_size=32, embed_dim=64, depth=1, num_heads=1),
        *("last_feat", 128, (4.0, 2.0, 1.0, 0.5)),
        top_block=LastLevelMaxPool(),
    ).eval()
    state = {k: v for k, v in backbone.state_dict().items() if not k.startswith("net.")}
    missing, unexpected = reference.load_state_dict(state, strict=False)
    assert not unexpected and all(key.startswith("net.") for key in missing)
    image = torch.randn(1, 3, 64, 96)
    map_ = backbone.net(image)["blocks.3"]
    reference.net.forward = lambda x: {"last_feat": map_}
    found, expected = backbone(image), reference(image)
    assert list(found) == ["p2", "p3", "p4", "p5", "p6"]
    for level, stride in zip(found, (4, 8, 16, 32, 64), strict=True):
        assert torch.equal(found[level], expected[level])
        assert found[level].shape[2:] == (64 // stride, -(-96 // stride))
        assert backbone.output_shape()[level] == ShapeSpec(channels=128, stride=stride)


@pytest.mark.slow
def test_panoptic_training_reaches_every_parameter_and_inference_pads(vit_cfg, batch):
    """61x83 pixels in tests: Detectron2's pyramid pads to nothing but squares."""
    torch.manual_seed(0)
    model = build_model(vit_cfg()).train()
    with EventStorage():
        losses = model(batch(2))
    assert all(loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    learnt = {k: p for k, p in model.backbone.named_parameters() if p.requires_grad}
    assert len(learnt) > 60 and [k for k, p in learnt.items() if p.grad is None] == []
    model.eval()
    shapes = []
    model.backbone.net.register_forward_hook(lambda _, inputs, __: shapes.append(inputs[0].shape))
    image = 255 * torch.rand(3, 61, 83)
    with torch.no_grad():
        output = model([{"image": image, "height": 61, "width": 83}])[0]
    assert shapes[0] == (1, 3, 64, 96) and output["sem_seg"].shape == (4, 61, 83)


def test_in_the_semantic_architecture():
    cfg = make_cfg(
        *(*NETWORK, "MODEL.FPN.OUT_CHANNELS", 16, "MODEL.TIMM.OUTPUT_STRIDE", 32),
        *("MODEL.SEM_SEG_HEAD.IN_FEATURES", LEVELS),
        *("MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES", LEVELS),
    )
    torch.manual_seed(0)
    model = build_model(cfg).train()
    assert model.divisor == 32
    sum(model(make_batch()).values()).backward()
    assert [k for k, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    with torch.no_grad():
        assert model.eval()(make_batch()[:1])[0]["labels"].shape == (61, 83)


FPN, SIMPLE = (f"build_timm_{kind}_backbone" for kind in ("fpn", "simple_fpn"))


@pytest.mark.parametrize(
    "builder, name, opts, message",
    [
        (FPN, "vit_tiny_patch16_224", (), "of stride 16, but .* 4, 8, 16, 32.* build_timm_simple"),
        (FPN, "resnet18", ("MODEL.TIMM.OUTPUT_STRIDE", 8), "stride 2, 4, 8, .*OUTPUT_STRIDE 32"),
        (FPN, "resnet18", ("MODEL.FPN.IN_FEATURES", ["res3"]), r"is \['res3'\]; .* \['res2', "),
        (SIMPLE, "eva02_tiny_patch14_224", (), "stride 14, .* MODEL.TIMM.PATCH_SIZE 16"),
        (SIMPLE, "test_convnext", (), "4, 8, 16, 32, .* build_timm_fpn_backbone"),
        (SIMPLE, "test_vit", (), r"\['res2'.*\]; .* the last: \['blocks.5'\]"),
    ],
)
def test_networks_without_a_pyramid(builder, name, opts, message, small_cfg):
    names = "MODEL.BACKBONE.NAME", builder, "MODEL.TIMM.NAME", name, "MODEL.TIMM.NORM", "BN"
    with pytest.raises(ValueError, match=message):
        build_backbone(small_cfg("ocr", *map(str, (*names, *opts))))
