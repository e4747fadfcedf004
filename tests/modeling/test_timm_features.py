"""Networks of timm for images of any size: ConvNeXt, Swin, ViT, against other codes."""

import re

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.modeling import TimmBackbone, deploy
from support.segmentors import make_batch, make_cfg

ViT = "test_vit3"  # for images of 160x160, with one register and an embedding for each patch


def source_of(name: str, **options) -> nn.Module:
    """timm's classifier; layer scales and biases are random, so that a mix-up would be seen."""
    torch.manual_seed(0)
    network = timm.create_model(name, **options).eval()
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return network


@pytest.mark.slow
@torch.no_grad()
def test_swin_is_torchvisions_at_a_size_of_partial_windows():
    """256x288: maps of 64x72 to 8x9 under windows of 7."""
    torch.manual_seed(0)
    reference = torchvision.models.swin_t(weights=None).eval()
    backbone = TimmBackbone("swin_tiny_patch4_window7_224", norm="BN").eval()
    names = {"features.0.0": "patch_embed.proj", "features.0.2": "patch_embed.norm"}
    weights = {}
    for key, value in reference.state_dict().items():
        if key.endswith("relative_position_index") or key.startswith(("norm", "head")):
            continue
        if found := re.match(r"features\.([246])\.(.*)", key):  # after stage 0, 1, 2
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
def test_every_block_of_a_vit_is_a_feature():
    """Features equal timm's ``forward_features`` at the size of the position embeddings, and timm's
    with interpolated embeddings at another one, bit for bit."""
    source = source_of(ViT, num_classes=0)
    backbone = TimmBackbone(ViT, output_norm="LN")
    backbone.body.model.load_state_dict(source.state_dict())
    backbone.eval()
    shapes = backbone.output_shape()
    assert list(shapes) == [f"blocks.{i}" for i in range(9)]
    assert {(s.channels, s.stride) for s in shapes.values()} == {(96, 16)}
    assert backbone.size_divisibility == 16
    image = torch.randn(2, 3, 160, 160)
    tokens = source.forward_features(image)[:, source.num_prefix_tokens :]
    found = backbone(image)["blocks.8"]
    assert torch.equal(found, tokens.transpose(1, 2).unflatten(2, (10, 10)))

    any_size = timm.create_model(ViT, num_classes=0, dynamic_img_size=True).eval()
    any_size.load_state_dict(source.state_dict())
    image = torch.randn(1, 3, 64, 176)
    expected = any_size.forward_intermediates(image, norm=True, intermediates_only=True)
    for found, map_ in zip(backbone(image).values(), expected, strict=True):
        assert found.shape == (1, 96, 4, 11)
        assert torch.equal(found, map_)


@torch.no_grad()
def test_blocks_behind_the_last_feature_are_not_there():
    whole, part = TimmBackbone(ViT).eval(), TimmBackbone(ViT).eval()
    part.read(["blocks.1", "blocks.4"])
    state = whole.body.state_dict()
    part.body.load_state_dict({k: state[k] for k in part.body.state_dict()})
    assert len(part.body.model.blocks) == 5
    assert list(part.output_shape()) == [f"blocks.{i}" for i in range(5)]
    image = torch.randn(1, 3, 48, 64)
    expected = whole(image)
    for name, found in part(image).items():
        assert torch.equal(found, expected[name])


@pytest.mark.parametrize(
    "name, multiple",
    [
        ("test_convnext", 32),  # its patches leave out what is over
        (ViT, 16),
        ("test_efficientnet", 0),
        ("resnet10t", 0),
    ],
)
@torch.no_grad()
def test_images_that_it_takes(name, multiple):
    backbone = TimmBackbone(name, norm="BN").eval()
    assert backbone.size_divisibility == multiple
    if not multiple:
        for feature, map_ in backbone(torch.zeros(1, 3, 61, 83)).items():
            stride = backbone.output_shape()[feature].stride
            assert map_.shape[2:] == (-(-61 // stride), -(-83 // stride))


@pytest.mark.parametrize(
    "name, features", [("test_convnext", ["stages.2"]), ("vit_tiny_patch16_224", ["blocks.1"])]
)
@torch.no_grad()
def test_a_semantic_model_pads_images_for_it(name, features):
    """61x83 pixels: the network sees them and zeros below and on the right."""
    opts = ("MODEL.TIMM.NAME", name, "MODEL.TIMM.OUTPUT_NORM", "LN", "MODEL.TIMM.OUTPUT_STRIDE", 32)
    for key in ("IN_FEATURES", "COARSE_IN_FEATURES"):
        opts += (f"MODEL.SEM_SEG_HEAD.{key}", features)
    torch.manual_seed(0)
    model = build_model(make_cfg(*opts)).eval()
    seen = []
    model.backbone.register_forward_hook(lambda _, inputs, outputs: seen.append(inputs[0]))
    inputs = make_batch()[:1]
    labels = model(inputs)[0]["labels"]
    assert labels.shape == (61, 83)
    padded = torch.zeros(1, 3, 64, 96)
    padded[:, :, :61, :83] = model.normalised(inputs[0]["image"])
    assert torch.equal(seen[0], padded)
    found, expected = (
        network.sem_seg_head.layers(network.backbone(padded))[1]
        for network in (deploy(model).network, model)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_output_norms_are_layer_norms_of_what_is_read():
    torch.manual_seed(0)
    plain = TimmBackbone("test_convnext").eval()
    normed = TimmBackbone("test_convnext", output_norm="LN").eval()
    normed.body.load_state_dict(plain.body.state_dict())
    normed.read(["stages.0", "stages.2"])
    image = torch.randn(1, 3, 64, 96)
    expected, found = plain(image), normed(image)
    assert torch.equal(found["stages.1"], expected["stages.1"])
    for name, channels in (("stages.0", 24), ("stages.2", 48)):
        pixels = expected[name].permute(0, 2, 3, 1)
        pixels = F.layer_norm(pixels, (channels,), eps=1e-6).permute(0, 3, 1, 2)
        torch.testing.assert_close(found[name], pixels, rtol=1e-5, atol=1e-5)
    assert len(list(normed.output_norms.parameters())) == 4


@pytest.mark.slow
def test_what_one_network_has_frozen_says_nothing_of_the_next():
    """Parameters that are not learnt are remembered for networks of equal arguments."""

    def learnt(backbone: TimmBackbone) -> set[str]:
        stages = {name.split(".")[1] for name, p in backbone.named_parameters() if p.requires_grad}
        return {stage for stage in stages if stage.startswith("layer")}

    first = TimmBackbone("resnet10t", norm="BN")
    first.body.layer1.requires_grad_(False)
    first.read(["layer3"])
    assert learnt(first) == {"layer2", "layer3"}
    first.read(["layer2"])
    assert learnt(first) == {"layer2"}
    for read, stages in ((["layer2"], {"layer1", "layer2"}), (["layer3", "layer1"], "123")):
        again = TimmBackbone("resnet10t", norm="BN")
        again.read(read)
        assert learnt(again) == {f"layer{stage[-1]}" for stage in stages}
    other = TimmBackbone("resnet10t", norm="BN", in_channels=4)
    other.read(["layer4"])
    assert learnt(other) == {"layer1", "layer2", "layer3", "layer4"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, read, idle",
    [
        ("test_convnext", ["stages.1", "stages.2"], ["body.stages_3."]),
        ("resnet10t", ["layer2"], ["body.layer3.", "body.layer4."]),
        (ViT, ["blocks.2"], []),
        ("test_efficientnet", ["blocks.2"], []),
        ("xcit_nano_12_p16_224", ["blocks.11"], ["body.model.cls_token"]),
    ],
)
@pytest.mark.parametrize("output_norm", ["", "LN"])
def test_what_is_learnt_gets_a_gradient(name, read, idle, output_norm):
    """DistributedDataParallel waits for each."""
    torch.manual_seed(0)
    backbone = TimmBackbone(name, norm="BN", output_norm=output_norm)
    backbone.read(read)
    assert backbone.training and all(m.training for m in backbone.modules())
    maps = backbone(torch.randn(2, 3, 96, 96))
    sum((maps[feature] ** 3).sum() for feature in read).backward()
    for key, parameter in backbone.named_parameters():
        assert parameter.requires_grad != key.startswith(tuple(idle)), key
        assert (parameter.grad is not None) == parameter.requires_grad, key
    assert len([p for p in backbone.parameters() if p.requires_grad]) >= 9


def test_a_frozen_network_has_no_norm_that_learns():
    backbone = TimmBackbone("test_convnext", output_norm="LN", frozen=True)
    backbone.read(["stages.3"])
    assert not any(p.requires_grad for p in backbone.parameters())
    assert not backbone.body.training


@torch.no_grad()
def test_patches_of_another_size_keep_the_number_of_embeddings():
    backbone = TimmBackbone(ViT, patch_size=8).eval()
    assert backbone.body.model.pos_embed.shape == timm.create_model(ViT).pos_embed.shape
    assert backbone.output_shape()["blocks.0"].stride == 8
    assert backbone(torch.zeros(1, 3, 24, 40))["blocks.8"].shape == (1, 96, 3, 5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"name": "maxvit_nano_rw_256"}, r"does not take images of 96x160 .* window \(8\)\. Use a"),
        ({"name": "resnet10t", "patch_size": 16}, "resnet10t is no plain ViT. Set it to 0"),
        ({"name": ViT, "output_norm": "GN"}, 'OUTPUT_NORM is GN; it is "LN" or ""'),
    ],
)
def test_what_cannot_work_is_told(options, message):
    with pytest.raises(ValueError, match=message):
        TimmBackbone(**options)
