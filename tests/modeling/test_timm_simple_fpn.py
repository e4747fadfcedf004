"""Plain ViTs of timm under Detectron2's simple feature pyramid, in both architectures."""

import pytest
import torch
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_backbone, build_model
from detectron2.modeling.backbone import SimpleFeaturePyramid
from detectron2.modeling.backbone.fpn import LastLevelMaxPool
from detectron2.modeling.backbone.vit import ViT
from detectron2.utils.events import EventStorage

from ocr_panoptic.modeling import deploy
from support.segmentors import make_batch, make_cfg

NETWORK = (
    *("MODEL.BACKBONE.NAME", "build_timm_simple_fpn_backbone", "MODEL.TIMM.NAME", "test_vit"),
    *("MODEL.FPN.IN_FEATURES", "['blocks.3']", "MODEL.FPN.NORM", "LN"),
)
LEVELS = "['p2', 'p3', 'p4', 'p5']"


@pytest.fixture
def vit_cfg(small_cfg):
    def make(head: str = "ocr", *opts: object):
        return small_cfg(head, *NETWORK, *map(str, opts))

    return make


@torch.no_grad()
def test_the_pyramid_is_detectron2s_on_the_map_of_the_block(vit_cfg):
    """Detectron2's own pyramid, built for its own ViT, with the same weights."""
    torch.manual_seed(0)
    backbone = build_backbone(vit_cfg()).eval()
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
@pytest.mark.parametrize("head", ["ocr", "plain"])
def test_panoptic_training_reaches_every_parameter_and_inference_pads(head, vit_cfg, batch):
    """61x83 pixels in tests: Detectron2's pyramid pads to nothing but squares."""
    torch.manual_seed(0)
    cfg = vit_cfg(head)
    model = build_model(cfg).train()
    with EventStorage():
        losses = model(batch(2))
    assert all(loss.isfinite() for loss in losses.values())
    sum(losses.values()).backward()
    learnt = {k: p for k, p in model.backbone.named_parameters() if p.requires_grad}
    assert len(learnt) > 60 and [k for k, p in learnt.items() if p.grad is None] == []
    model.eval()
    shapes = []
    model.backbone.net.register_forward_hook(lambda _, inputs, __: shapes.append(inputs[0].shape))
    fast = deploy(model).network
    image = 255 * torch.rand(3, 61, 83)
    with torch.no_grad():
        output = model([{"image": image, "height": 61, "width": 83}])[0]
        assert shapes[0] == (1, 3, 64, 96)
        padded = torch.randn(1, 3, 64, 96)
        found, expected = fast.backbone(padded), model.backbone(padded)
    assert output["sem_seg"].shape == (4, 61, 83)
    for level, map_ in expected.items():
        torch.testing.assert_close(found[level], map_, rtol=1e-5, atol=1e-5)


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


@pytest.mark.slow
@torch.no_grad()
def test_every_key_of_the_network_changes_the_features(vit_cfg):
    def features(*opts: object) -> torch.Tensor:
        torch.manual_seed(0)
        return build_backbone(vit_cfg("ocr", *opts)).eval()(image)["p2"]

    image = torch.randn(1, 3, 64, 96)
    plain = features()
    for opts in (
        ("MODEL.TIMM.OUTPUT_NORM", "LN"),
        ("MODEL.TIMM.NAME", "test_vit3", "MODEL.FPN.IN_FEATURES", "['blocks.3']"),
        ("MODEL.FPN.IN_FEATURES", "['blocks.2']"),
        ("MODEL.FPN.NORM", "GN"),
    ):
        found = features(*opts)
        assert found.shape == plain.shape and not torch.allclose(found, plain), opts


@pytest.mark.parametrize(
    "opts, message",
    [
        (("MODEL.TIMM.NAME", "eva02_tiny_patch14_224"), "stride 14, .* MODEL.TIMM.PATCH_SIZE 16"),
        (("MODEL.TIMM.NAME", "test_convnext"), "4, 8, 16, 32, .* Use build_timm_fpn_backbone"),
        (("MODEL.FPN.IN_FEATURES", "['res2']"), r"\['res2'\]; .* the last one, \['blocks.5'\]"),
    ],
)
def test_what_it_cannot_stand_on(opts, message, vit_cfg):
    with pytest.raises(ValueError, match=message):
        build_backbone(vit_cfg("ocr", *opts))


@pytest.mark.slow
def test_patches_of_16_for_a_network_of_14(vit_cfg):
    cfg = vit_cfg("ocr", "MODEL.TIMM.NAME", "eva02_tiny_patch14_224", "MODEL.TIMM.PATCH_SIZE", 16)
    backbone = build_backbone(cfg)
    assert backbone.net.body.model.patch_embed.patch_size == (16, 16)
    assert backbone.size_divisibility == 32
