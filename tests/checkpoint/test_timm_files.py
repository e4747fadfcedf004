"""Files of timm's networks give the same weights and normalisation as timm's own loading."""

import re

import pytest
import timm
import torch
from detectron2.config import CfgNode
from huggingface_hub import constants
from safetensors.torch import save_file
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer, check_settings, fetch_weights
from ocr_panoptic.checkpoint.imagenet import timm_record
from support.backbones import Model, timm_cfg

pytestmark = pytest.mark.slow


def classifier(name: str) -> nn.Module:
    torch.manual_seed(0)
    network = timm.create_model(name)
    for parameter in network.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return network


def load(cfg: CfgNode, path: object) -> tuple[Model, SafeCheckpointer]:
    model = Model(cfg)
    checkpointer = SafeCheckpointer(model, min_share=0.9)
    checkpointer.load(str(path))
    return model, checkpointer


FPN = "build_timm_fpn_backbone"


PLAIN = "build_timm_backbone"
VIT = ("build_timm_simple_fpn_backbone", "MODEL.FPN.IN_FEATURES", "['blocks.5']")
NORM = ("MODEL.TIMM.OUTPUT_NORM", "LN")


@pytest.mark.parametrize(
    "name, suffix, channels, opts",
    [
        ("resnet18", "pth", 3, (PLAIN, "MODEL.TIMM.OUTPUT_STRIDE", 8)),
        ("hrnet_w18_small", "safetensors", 3, (PLAIN,)),  # HRNet's own files have the same names
        ("test_convnext", "pth", 3, (PLAIN,)),
        ("test_convnext", "safetensors", 3, (FPN, *NORM)),
        ("test_vit", "pth", 3, (PLAIN, *NORM)),
        ("test_vit", "safetensors", 3, VIT),
        ("test_efficientnet", "pth", 3, (FPN,)),
        ("resnet18", "safetensors", 1, (FPN,)),
        ("resnet18", "safetensors", 7, (FPN,)),
        *(
            (name, "pth", 4, (FPN,))
            for name in ("resnet10t", "tf_efficientnet_lite0", "regnety_002")
        ),
    ],
)
def test_every_tensor_equals_timms(name, suffix, channels, opts, tmp_path):
    """The reference is timm's own loading of the classifier's file, for as many channels."""
    weights, file = classifier(name).state_dict(), tmp_path / "file.safetensors"
    save_file(weights, file)
    overlay = {"file": str(file), "url": "", "hf_hub_id": ""}
    options = {"in_chans": channels, "pretrained": True, "pretrained_cfg_overlay": overlay}
    theirs, path = timm.create_model(name, **options).state_dict(), tmp_path / f"{name}.{suffix}"
    {"pth": torch.save, "safetensors": save_file}[suffix](weights, path)
    cfg = timm_cfg(name, *opts)
    cfg.MODEL.PIXEL_MEAN = [0.0] * channels
    model, _ = load(cfg, path)
    found = {
        re.sub(r".*\.body\.(model\.)?", "", f".{key}"): value
        for key, value in model.backbone.state_dict().items()
        if ".body." in f".{key}"
    }
    assert len(found) > 30
    for key, value in found.items():
        flat = re.sub(r"^([a-z]+)_(\d)", r"\1.\2", key)  # features_only names them stages_0
        assert torch.equal(value, theirs[key] if key in theirs else theirs[flat]), key


@torch.no_grad()
def test_other_patches_and_channels_equal_timms(tmp_path):
    """
    A ViT for colours with patches of 16 becomes a ViT for four channels with patches of 8.

    The first three channels keep the normalisation of the weights.
    """
    path = tmp_path / "vit.safetensors"
    save_file(classifier("test_vit3").state_dict(), path)
    opts = ("MODEL.TIMM.PATCH_SIZE", 8, "INPUT.CHANNELS", 4, "MODEL.PIXEL_STD", [127.5] * 4)
    cfg = timm_cfg("test_vit3", "build_timm_backbone", "MODEL.PIXEL_MEAN", [127.5] * 4, *opts)
    model, checkpointer = load(cfg, path)
    cfg.INPUT.FORMAT = "RGB"
    check_settings(cfg, checkpointer.record, strict=True)
    cfg.MODEL.PIXEL_MEAN = [0.0, 127.5, 127.5, 127.5]
    with pytest.raises(ValueError, match=r"PIXEL_MEAN is \[0.0, 127.5, 127.5, 127.5\], expected"):
        check_settings(cfg, checkpointer.record, strict=True)
    theirs = timm.create_model(
        "test_vit3",
        **{"patch_size": 8, "img_size": 80, "dynamic_img_size": True},
        **{"pretrained": True, "in_chans": 4},
        pretrained_cfg_overlay={"file": str(path), "url": "", "hf_hub_id": ""},
    ).eval()
    assert theirs.patch_embed.proj.weight.shape[2:] == (8, 8)
    image = torch.randn(1, 4, 40, 64)
    expected = theirs.forward_intermediates(image, intermediates_only=True)[-1]
    torch.testing.assert_close(model.backbone.eval()(image)["blocks.8"], expected)


def test_the_authors_layout_of_convnext(tmp_path):
    source = classifier("test_convnext")
    weights = {}
    for key, value in source.state_dict().items():
        key = re.sub(r"^stages\.(\d)\.blocks", r"stages.\1", key)
        key = re.sub(r"^stages\.(\d)\.downsample", r"downsample_layers.\1", key)
        key = re.sub(r"^stem", "downsample_layers.0", key)
        key = key.replace("conv_dw", "dwconv").replace("mlp.fc", "pwconv")
        if not key.startswith("head"):
            weights[key] = value
    path = tmp_path / "convnext.pth"
    torch.save({"model": weights}, path)
    model, _ = load(timm_cfg("test_convnext"), path)
    body, expected = model.backbone.body, source.state_dict()
    assert torch.equal(body.stages_1.downsample[1].weight, expected["stages.1.downsample.1.weight"])
    fc2 = body.stages_3.blocks[0].mlp.fc2
    assert torch.equal(fc2.bias, expected["stages.3.blocks.0.mlp.fc2.bias"])


def test_another_network_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(classifier("test_convnext").state_dict(), path)
    with pytest.raises(ValueError, match=r"(?s)do not fit the backbone: 52 of its 52.*TIMM.NAME"):
        load(timm_cfg("test_convnext2"), path)
    with pytest.raises(ValueError, match="do not fit the model|do not fit the backbone"):
        load(timm_cfg("test_vit"), path)


IMAGENET = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)


@pytest.mark.parametrize(
    "network, file, means",
    [
        ("vit_small_patch16_224", "w/vit_small_patch16_224.dino.pth", {IMAGENET}),
        ("vit_small_patch16_224", "timm://vit_small_patch16_224.augreg_in1k", {(127.5,) * 3}),
        ("vit_small_patch16_224.dino", "model.pth", {IMAGENET}),
        ("vit_small_patch16_224.augreg_in1k", "vit_small_patch16_224.dino.pth", {IMAGENET}),
        ("vit_small_patch16_224", "model.pth", {IMAGENET, (127.5,) * 3}),
        ("convnext_tiny", "models--timm--convnext_tiny.fb_in1k/model.safetensors", {IMAGENET}),
        ("convnext_tiny", "timm://convnext_tiny", {IMAGENET}),
    ],
)
def test_the_weights_of_a_file_are_recognised(network, file, means):
    """Means and deviations are as in timm's documentation of these weights."""
    settings = timm_record(network, file)["settings"]
    assert settings["INPUT.FORMAT"] == "RGB" and settings["MODEL.PIXEL_MEAN"] == means
    deviations = {IMAGENET_STD if mean == IMAGENET else mean for mean in means}
    assert settings["MODEL.PIXEL_STD"] == deviations
    assert timm_record("convnext_nano_ols_of_nobody", "model.pth") is None


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Return an empty cache of the Hugging Face hub, on a machine without a network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_weights_by_timms_name(hub):
    """Weights are found in the layout of the hub's cache."""
    folder = hub / "models--timm--test_convnext.r160_in1k"
    revision = "0123456789abcdef0123456789abcdef01234567"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(revision)
    (folder / "snapshots" / revision).mkdir(parents=True)
    source = classifier("test_convnext")
    save_file(source.state_dict(), folder / "snapshots" / revision / "model.safetensors")
    for address in ("timm://test_convnext.r160_in1k", "timm://test_convnext"):
        model, checkpointer = load(timm_cfg("test_convnext"), address)
        assert torch.equal(model.backbone.body.stem_0.weight, source.stem[0].weight)
        assert checkpointer.record["settings"]["MODEL.PIXEL_STD"] == {(127.5, 127.5, 127.5)}


@pytest.mark.parametrize(
    "address, message",
    [
        ("timm://convnext_tiny.fb_in1k", "downloaded .*https://.*/timm/convnext_tiny.fb_in1k/res"),
        ("timm://convnext_tiny.fb_in", "no weights timm:.*mean convnext_tiny.fb_in"),
        ("timm://convnext_tinny", "Did you mean convnext_tiny"),
        ("timm://", "Names are like timm://convnext_tiny.fb_in1k"),
    ],
)
def test_missing_weights(address, message, hub):
    with pytest.raises(FileNotFoundError, match=message):
        fetch_weights(address)
