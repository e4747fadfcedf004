"""
Backbones of timm.

A new network is added to NETWORKS and inherits the battery: declared shapes, sizes of images, equal
features with each norm and folded, parts that are read, parts that learn.
"""

import copy
import re
from dataclasses import dataclass, field

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from detectron2.layers import ShapeSpec
from detectron2.modeling import build_model
from timm.layers import DropPath

from ocr_panoptic.modeling import TimmBackbone
from ocr_panoptic.modeling.timm_pyramids import TimmPyramid
from support.segmentors import make_batch, make_cfg, trained_like


@dataclass
class Network:
    features: dict[str, tuple[int, int]]  # name -> (channels, stride)
    read: tuple[str, ...]  # features that a head reads; parts after the last are left out
    multiple: int = 0  # sides of images must be multiples of it; 0 for any size
    left: int = 0  # number of norms that cannot be folded
    options: dict = field(default_factory=dict)  # arguments of the backbone


def stages(names: str, channels: tuple[int, ...], strides=(4, 8, 16, 32), first: int = 0) -> dict:
    shapes = zip(channels, strides, strict=True)
    return {names.format(i + first): shape for i, shape in enumerate(shapes)}


LITE0 = "tf_efficientnet_lite0"
LITE0_CHANNELS = (16, 24, 40, 80, 112, 192, 320)
NETWORKS = {
    "resnet10t": Network(
        {"act1": (64, 2), **stages("layer{}", (64, 128, 256, 512), first=1)},
        ("layer1", "layer3"),
        left=1,
    ),
    "resnet18 at stride 8": Network(
        {"act1": (64, 2), **stages("layer{}", (64, 128, 256, 512), (4, 8, 8, 8), 1)},
        ("layer3", "layer4"),
        options={"output_stride": 8},
    ),
    LITE0: Network(
        stages("blocks.{}", LITE0_CHANNELS, (2, 4, 8, 16, 16, 32, 32)), ("blocks.3", "blocks.5")
    ),
    f"{LITE0} at stride 8": Network(
        stages("blocks.{}", LITE0_CHANNELS, (2, 4, 8, 8, 8, 8, 8)),
        ("blocks.2", "blocks.4"),
        options={"output_stride": 8},
    ),
    "mobilenetv4_conv_small": Network(
        stages("blocks.{}", (32, 64, 96, 128, 960), (4, 8, 16, 32, 32)), ("blocks.0", "blocks.2")
    ),
    "regnety_002": Network(
        {"stem": (32, 2), **stages("s{}", (24, 56, 152, 368), first=1)}, ("s2", "s3")
    ),
    "hrnet_w18_small": Network(
        {"stem": (64, 2), **stages("stage{}", (16, 32, 64, 128), first=1)},
        ("stage1", "stage2", "stage3", "stage4"),
    ),
    "hrnet2x_w20": Network(
        stages("stage{}", (20, 40, 80, 160, 320), (2, 4, 8, 16, 32), 1),
        ("stage1", "stage2", "stage3", "stage4", "stage5"),
    ),
    "pvt_v2_b0": Network(stages("stages.{}", (32, 64, 160, 256)), ("stages.1", "stages.2")),
    "test_convnext": Network(
        stages("stages.{}", (24, 32, 48, 64)), ("stages.0", "stages.2"), multiple=32
    ),
    "swin_tiny_patch4_window7_224": Network(
        stages("layers.{}", (96, 192, 384, 768)), ("layers.0", "layers.1"), multiple=32
    ),
    "test_vit3": Network(
        {f"blocks.{i}": (96, 16) for i in range(9)}, ("blocks.1", "blocks.4"), multiple=16
    ),
    "eva02_tiny_patch14_224": Network(
        {f"blocks.{i}": (192, 14) for i in range(12)}, ("blocks.1",), multiple=14
    ),
    "deit_tiny_patch16_224": Network(
        {f"blocks.{i}": (192, 8) for i in range(12)},
        ("blocks.2",),
        multiple=8,
        options={"patch_size": 8},
    ),
}
VIT = "test_vit3"  # images of 160x160, one register, an embedding for each patch


def backbone_of(name: str, *read: str, **options) -> TimmBackbone:
    options = {"norm": "BN", **NETWORKS[name].options, **options}
    return TimmBackbone(name.partition(" ")[0], read, **options)


@pytest.fixture(params=NETWORKS)
def name(request) -> str:
    return request.param


class TestEveryNetwork:
    pytestmark = pytest.mark.slow

    @torch.no_grad()
    def test_has_the_shapes_that_it_declares(self, name):
        """Images have four channels; sides have no common factor if the network pads its maps."""
        network = NETWORKS[name]
        backbone = backbone_of(name, in_channels=4).eval()
        declared = {k: (s.channels, s.stride) for k, s in backbone.output_shape().items()}
        assert declared == network.features
        assert backbone.size_divisibility == network.multiple
        unit = network.multiple
        size = (3 * unit, 5 * unit) if unit else (61, 83)
        for feature, map_ in backbone(torch.zeros(1, 4, *size)).items():
            channels, stride = declared[feature]
            assert map_.shape == (1, channels, *(-(-side // stride) for side in size))

    def test_only_parts_of_the_read_features_learn(self, name):
        """Every parameter gets a gradient, for which DistributedDataParallel waits."""
        torch.manual_seed(0)
        whole = backbone_of(name)
        backbone = backbone_of(name, *NETWORKS[name].read, output_norm="LN")
        assert list(backbone.output_shape())[-1] == NETWORKS[name].read[-1]
        state, own = whole.state_dict(), backbone.state_dict()
        backbone.load_state_dict({k: state.get(k, v) for k, v in own.items()})
        assert all(module.training for module in backbone.modules())
        side = 56 if "14" in name else 64
        maps = backbone(image := torch.randn(2, 3, side, side))
        sum((maps[feature] ** 3).sum() for feature in NETWORKS[name].read).backward()
        assert len(list(backbone.parameters())) >= 9
        assert [k for k, p in backbone.named_parameters() if p.grad is None] == []
        plain = backbone_of(name, *NETWORKS[name].read)
        plain.load_state_dict({k: state[k] for k in plain.state_dict()})
        with torch.no_grad():
            expected, found = whole.eval()(image), plain.eval()(image)
        assert all(torch.equal(map_, expected[feature]) for feature, map_ in found.items())

    @pytest.mark.parametrize(
        "name, norm",
        [
            *((LITE0, "BN"), (LITE0, "SyncBN"), (LITE0, "FrozenBN"), ("resnet10t", "FrozenBN")),
            *(("mobilenetv4_conv_small", "FrozenBN"), ("regnety_002", "FrozenBN")),
        ],
    )
    def test_is_the_same_with_every_norm_and_folded(self, name, norm):
        """Many of timm's batch norms also apply an activation, which must not be lost."""
        torch.manual_seed(0)
        source = trained_like(backbone_of(name)).double()
        backbone = backbone_of(name, norm=norm).double().eval()
        backbone.load_state_dict(source.state_dict(), strict=False)
        image = torch.randn(1, 3, 32, 64, dtype=torch.float64)
        with torch.no_grad():
            expected = source(image)
            self.assert_close(backbone(image), expected)
            if norm == "FrozenBN":
                assert not any("bn" in key for key, _ in backbone.named_parameters())
                self.assert_close(backbone.train()(image), expected)
                backbone.eval()
            backbone.fold_norms()
            norms = [m for m in backbone.modules() if getattr(m, "running_var", None) is not None]
            assert len(norms) == NETWORKS[name].left
            self.assert_close(backbone(image), expected)

    def assert_close(self, found: dict, expected: dict) -> None:
        for feature, reference in expected.items():
            assert reference.std() > 1e-6
            most = reference.abs().max().item()
            torch.testing.assert_close(found[feature], reference, rtol=1e-9, atol=1e-9 * most)


@pytest.mark.parametrize(
    "name, channels",
    [(LITE0, (24, 40, 112, 320)), ("hrnet_w18_small", (16, 32, 64, 128)), ("test_convnext", None)],
)
@torch.no_grad()
def test_a_pyramid_has_the_last_map_of_each_stride(name, channels):
    torch.manual_seed(0)
    backbone, whole = TimmPyramid(name, norm="BN").eval(), TimmBackbone(name, norm="BN").eval()
    whole.load_state_dict(backbone.state_dict())
    image = torch.randn(1, 3, 64, 160)
    features, expected = backbone(image), list(whole(image).values())
    assert list(features) == ["res2", "res3", "res4", "res5"]
    for (key, y), stride in zip(features.items(), (4, 8, 16, 32), strict=True):
        c = channels[stride.bit_length() - 3] if channels else y.shape[1]
        assert y.shape == (1, c, 64 // stride, 160 // stride)
        assert backbone.output_shape()[key] == ShapeSpec(channels=c, stride=stride)
        same = [map_ for map_ in expected if map_.shape == y.shape]
        assert torch.equal(y, same[-1])


@pytest.mark.slow
@torch.no_grad()
def test_swin_equals_torchvisions_with_partial_windows():
    """256x288 pixels give maps of 64x72 to 8x9 under windows of 7."""
    torch.manual_seed(0)
    reference = torchvision.models.swin_t(weights=None).eval()
    backbone = TimmBackbone("swin_tiny_patch4_window7_224").eval()
    names = {"features.0.0": "patch_embed.proj", "features.0.2": "patch_embed.norm"}
    weights = {}
    for key, value in reference.state_dict().items():
        if key.endswith("relative_position_index") or key.startswith(("norm", "head")):
            continue
        if found := re.match(r"features\.([246])\.(.*)", key):  # after stages 0, 1, 2
            key = f"layers_{int(found[1]) // 2}.downsample.{found[2]}"
        elif found := re.match(r"features\.([1357])\.(\d)\.(.*)", key):
            rest = found[3].replace("mlp.0", "mlp.fc1").replace("mlp.3", "mlp.fc2")
            key = f"layers_{int(found[1]) // 2}.blocks.{found[2]}.{rest}"
        else:
            key = names[key.rpartition(".")[0]] + "." + key.rpartition(".")[2]
        weights[key] = value
    assert not backbone.body.load_state_dict(weights).missing_keys
    x = image = torch.randn(1, 3, 256, 288)
    found = backbone(image)
    for i, part in enumerate(reference.features):
        x = part(x)
        if i % 2:
            expected = x.permute(0, 3, 1, 2)
            assert expected.abs().max() > 1
            torch.testing.assert_close(found[f"layers.{i // 2}"], expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_vit_equals_timms_at_any_size():
    """Features have the network's last norm; position embeddings are interpolated."""
    torch.manual_seed(0)
    source = timm.create_model(VIT, num_classes=0).eval()
    for parameter in source.parameters():
        if parameter.ndim == 1:
            parameter.add_(0.2 * torch.randn_like(parameter))
    backbone = TimmBackbone(VIT, output_norm="LN")
    backbone.body.model.load_state_dict(source.state_dict())
    backbone.eval()
    image = torch.randn(2, 3, 160, 160)
    tokens = source.forward_features(image)[:, source.num_prefix_tokens :]
    found = backbone(image)["blocks.8"]
    assert torch.equal(found, tokens.transpose(1, 2).unflatten(2, (10, 10)))
    any_size = timm.create_model(VIT, num_classes=0, dynamic_img_size=True).eval()
    any_size.load_state_dict(source.state_dict())
    image = torch.randn(1, 3, 64, 176)
    expected = any_size.forward_intermediates(image, norm=True, intermediates_only=True)
    for found, map_ in zip(backbone(image).values(), expected, strict=True):
        assert torch.equal(found, map_)
    resized = TimmBackbone(VIT, patch_size=8)
    assert resized.body.model.pos_embed.shape == source.pos_embed.shape


@pytest.mark.parametrize("align_corners, twice", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("size, half", [((8, 12), (4, 6)), ((7, 11), (4, 6))])
def test_hrnet_adds_its_branches_by_bilinear_upsampling(align_corners, twice, size, half):
    torch.manual_seed(0)
    options = {"align_corners": align_corners, "enlarge_twice": twice}
    backbone = TimmBackbone("hrnet_w18_small_v2", norm="BN", **options)
    module = backbone.body.stage2[0].eval()
    fine, coarse = torch.randn(1, 18, *size), torch.randn(1, 36, *half)
    fine_out, coarse_out = module([fine, coarse])
    a, b = module.branches[0](fine), module.branches[1](coarse)
    up, down = module.fuse_layers[0][1](b), module.fuse_layers[1][0](a)
    if twice:  # this size is too large by 1 for odd sides
        up = F.interpolate(up, scale_factor=2, mode="bilinear", align_corners=False)
    up = F.interpolate(up, size=size, mode="bilinear", align_corners=align_corners)
    torch.testing.assert_close(fine_out, F.relu(a + up))
    torch.testing.assert_close(coarse_out, F.relu(down + b))


def test_output_norms_are_layer_norms_of_the_read_features():
    torch.manual_seed(0)
    plain = TimmBackbone("test_convnext").eval()
    normed = TimmBackbone("test_convnext", ["stages.2", "stages.0"], output_norm="LN").eval()
    normed.load_state_dict({**normed.state_dict(), **plain.state_dict()}, strict=False)
    image = torch.randn(1, 3, 64, 96)
    expected, found = plain(image), normed(image)
    for name, channels in (("stages.0", 24), ("stages.2", 48)):
        pixels = expected[name].permute(0, 2, 3, 1)
        pixels = F.layer_norm(pixels, (channels,), eps=1e-6).permute(0, 3, 1, 2)
        torch.testing.assert_close(found[name], pixels, rtol=1e-5, atol=1e-5)


def test_a_frozen_network_learns_nothing_in_any_precision():
    torch.manual_seed(0)
    opts = ("MODEL.TIMM.NAME", LITE0, "MODEL.TIMM.FROZEN", True)
    for key in ("IN_FEATURES", "COARSE_IN_FEATURES"):
        opts += (f"MODEL.SEM_SEG_HEAD.{key}", ["blocks.4"])
    model = build_model(make_cfg(*opts)).train()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    sum(model(make_batch()).values()).backward()
    optimizer.step()
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            assert torch.equal(tensor, before[name]) == name.startswith("backbone."), name
    x = torch.randn(2, 3, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        learning = model.backbone(x)["blocks.4"]
    with torch.no_grad():
        assert torch.equal(learning, model.backbone.eval()(x)["blocks.4"])
    normed = TimmBackbone("test_convnext", output_norm="LN", frozen=True)
    assert not any(p.requires_grad for p in normed.parameters())


@pytest.mark.parametrize("name, blocks", [("convnext_atto", 12), ("resnet18", 8)])
def test_drop_path_rises_from_block_to_block(name, blocks):
    """It rises linearly from 0, as stochastic depth was published; the first block always stays."""
    backbone = TimmBackbone(name, norm="BN", drop_path=0.3)
    chances = [m.drop_prob for m in backbone.modules() if isinstance(m, DropPath)]
    expected = [0.3 * i / (blocks - 1) for i in range(blocks)]
    assert [chance for chance in chances if chance] == pytest.approx(expected[1:])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"name": "no_such_network"}, "NAME is no_such_network; .* resnet, regnet, .* convnext"),
        ({"name": "maxvit_nano_rw_256"}, "NAME is maxvit_nano_rw_256; .* resnet, regnet"),
        ({"name": "resnet10t", "patch_size": 16}, "resnet10t is not a plain ViT. Set it to 0"),
        ({"name": "convnext_atto", "output_stride": 7}, "MODEL.TIMM.OUTPUT_STRIDE 7: "),
        ({"name": "hrnet_w18_small", "drop_path": 0.3}, "hrnet_w18_small has no drop path"),
    ],
)
def test_refused_networks(options, message):
    with pytest.raises(ValueError, match=message):
        TimmBackbone(**options)
