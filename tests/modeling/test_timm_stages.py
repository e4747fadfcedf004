"""EfficientNets of timm as backbones: every stage, truncation, frozen, and folded norms."""

import copy

import pytest
import timm
import torch
from detectron2.modeling import build_model
from timm.layers import DropPath
from torch import nn

from ocr_panoptic.modeling import TimmBackbone
from support.segmentors import make_batch, make_cfg, trained_like

NAME = "tf_efficientnet_lite0"
STAGES = [f"blocks.{i}" for i in range(7)]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """timm's whole classifier at stride 8, with norms that are not the identity."""
    torch.manual_seed(0)
    return trained_like(timm.create_model(NAME, output_stride=8))


def backbone_of(network: nn.Module, **options) -> TimmBackbone:
    backbone = TimmBackbone(NAME, output_stride=8, norm="BN", **options).eval()
    assert not backbone.body.load_state_dict(network.state_dict(), strict=False).missing_keys
    return backbone


@pytest.mark.slow
@torch.no_grad()
def test_every_stage_is_a_feature(network):
    backbone, x = backbone_of(network), torch.randn(2, 3, 48, 80)
    y = network.bn1(network.conv_stem(x))
    features = backbone(x)
    assert list(features) == list(backbone.output_shape()) == STAGES
    for (name, shape), stage in zip(backbone.output_shape().items(), network.blocks, strict=True):
        y = stage(y)
        assert torch.equal(features[name], y)
        assert (shape.channels, shape.stride) == (y.shape[1], 48 // y.shape[2])
    assert [shape.stride for shape in backbone.output_shape().values()] == [2, 4, 8, 8, 8, 8, 8]


def test_strides_of_the_network_itself():
    shapes = TimmBackbone(NAME, norm="BN").output_shape().values()
    assert [shape.stride for shape in shapes] == [2, 4, 8, 16, 16, 32, 32]


@pytest.mark.slow
@torch.no_grad()
def test_what_lies_behind_the_last_feature_is_not_there(network):
    whole, part, x = backbone_of(network), backbone_of(network), torch.randn(1, 3, 32, 32)
    part.read({"blocks.3", "blocks.2"})
    assert list(part.output_shape()) == STAGES[:4]
    sizes = [sum(p.numel() for p in network.parameters()) for network in (part, whole)]
    assert sizes[0] < 0.1 * sizes[1]
    expected = whole(x)
    for name, map_ in part(x).items():
        assert torch.equal(map_, expected[name])
    part.read({"of another backbone"})
    assert list(part.output_shape()) == STAGES[:4]


def frozen_model() -> nn.Module:
    torch.manual_seed(0)
    opts = ("MODEL.TIMM.NAME", NAME, "MODEL.TIMM.FROZEN", True)
    for key in ("IN_FEATURES", "COARSE_IN_FEATURES"):
        opts += (f"MODEL.SEM_SEG_HEAD.{key}", ["blocks.4"])
    return build_model(make_cfg(*opts)).train()


def test_a_frozen_network_learns_nothing():
    model = frozen_model()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    sum(model(make_batch()).values()).backward()
    optimizer.step()
    for name, tensor in model.state_dict().items():
        of_network = name.startswith("backbone.")
        assert torch.equal(tensor, before[name]) == of_network or tensor.dtype == torch.int64, name
        assert not of_network or torch.equal(tensor, before[name])
    assert all(p.grad is None for p in model.backbone.parameters())
    assert model.sem_seg_head.training
    assert not any(m.training for m in model.backbone.body.modules())


def test_its_features_are_those_of_an_evaluation_in_autocast_too():
    model, x = frozen_model(), torch.randn(2, 3, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        learning = model.backbone(x)["blocks.4"]
    with torch.no_grad():
        evaluated = model.backbone.eval()(x)["blocks.4"]
    assert learning.dtype == torch.float32
    assert torch.equal(learning, evaluated)


@pytest.mark.parametrize("name, blocks", [("convnext_atto", 12), ("resnet18", 8)])
def test_drop_path_rises_from_block_to_block(name, blocks):
    """Linearly from 0, as stochastic depth was published; the first block is never left out."""
    backbone = TimmBackbone(name, norm="BN", drop_path=0.3)
    chances = [m.drop_prob for m in backbone.modules() if isinstance(m, DropPath)]
    expected = [0.3 * i / (blocks - 1) for i in range(blocks)]
    assert [chance for chance in chances if chance] == pytest.approx(expected[1:])


@pytest.mark.parametrize("name", ["hrnet_w18_small", "vgg11"])
def test_drop_path_of_a_network_without_it(name):
    with pytest.raises(ValueError, match=f"MODEL.TIMM.*{name}.*(leaves out no|drop_path_rate)"):
        TimmBackbone(name, norm="BN", drop_path=0.3)
