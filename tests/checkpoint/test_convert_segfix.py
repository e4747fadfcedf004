"""Converted SegFix weights of openseg.pytorch give the logits of the published network."""

from pathlib import Path

import pytest
import torch
from detectron2.modeling import build_model
from torch import Tensor

from ocr_panoptic.checkpoint.convert import convert_weights
from ocr_panoptic.engine import build_trained_model
from support import published_networks as published
from support.loaded_configs import CONFIGS
from support.published_files import FILES
from support.scripts import load_script

pytestmark = pytest.mark.slow

CONFIG = CONFIGS / f"{FILES['openseg_segfix'].recipe}.yaml"
W18 = ("MODEL.TIMM.NAME", "hrnet_w18")
HRNET2X = (
    *("MODEL.TIMM.NAME", "hrnet2x_w20"),
    *("MODEL.SEM_SEG_HEAD.IN_FEATURES", str([f"stage{i}" for i in range(1, 6)])),
)
PLAIN = ("MODEL.OCR.NEGATIVE_SLOPE", "0.0")
tool = load_script("tools/convert_checkpoint.py")


@pytest.fixture(autouse=True)
def uninitialized(monkeypatch):
    """All weights of the models here come from files: random ones in front of them take time."""
    for name in ("normal_", "uniform_"):
        monkeypatch.setattr(Tensor, name, lambda self, *_, **__: self)


def make(width: int, opts: tuple[str, ...], options: dict, tmp_path: Path):
    """Config, published file, network's input, logits of the published network."""
    cfg = FILES["openseg_segfix"].load("MODEL.DEVICE", "cpu", "TEST.OPTIMIZED", "False", *opts)
    cfg.MODEL.SEGFIX.NORM = cfg.MODEL.TIMM.NORM = "BN"
    x = 255 * torch.rand(3, 65, 97, generator=torch.Generator().manual_seed(1))
    mean, std = torch.tensor(cfg.MODEL.PIXEL_MEAN), torch.tensor(cfg.MODEL.PIXEL_STD)
    x = ((x - mean[:, None, None]) / std[:, None, None])[None]
    weights = published.Weights(**options)
    with torch.no_grad():
        logits = published.openseg_segfix(weights, x, width)
    file = tmp_path / "published.pth"
    torch.save({"state_dict": {f"module.{k}": t for k, t in weights.tensors.items()}}, file)
    return cfg, file, x, logits


@pytest.mark.parametrize(
    "width, opts, options",
    [
        (18, (*W18, *PLAIN), {"nested": True}),
        (18, W18, {"inplace_abn": True}),
        (0, HRNET2X, {"inplace_abn": True}),
    ],
    ids=["W18, SyncBN", "W18, InPlaceABN", "HRNet2x-W20"],
)
def test_logits_are_those_of_the_published_network(width, opts, options, tmp_path, capsys):
    cfg, file, x, expected = make(width, opts, options, tmp_path)
    cfg.MODEL.WEIGHTS = str(tmp_path / "converted.pth")
    arguments = ["--from", "openseg", str(file), cfg.MODEL.WEIGHTS, "--config-file", str(CONFIG)]
    tool.main(arguments)
    weights = ("MODEL.WEIGHTS", cfg.MODEL.WEIGHTS, "OUTPUT_DIR", "./output/converted")
    written = (tmp_path / "converted.yaml").read_text()
    assert written == FILES["openseg_segfix"].load(*opts, *weights).dump()
    model = build_trained_model(cfg).network
    with torch.no_grad():
        found = model.layers(x)
    for ours, theirs in zip(found, expected, strict=True):
        assert theirs.std() > 0.1  # not a constant map
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())
    printed = capsys.readouterr().out
    assert "0 biases folded" in printed and "context.g" not in printed
    assert ("|weight| + 1e-05" in printed) == options.get("inplace_abn", False)


def test_what_does_not_fit_is_named(tmp_path):
    cfg, file, _, _ = make(18, W18, {"inplace_abn": True}, tmp_path)
    weights = torch.load(file)["state_dict"]
    shapes = {k: tuple(v.shape) for k, v in build_model(cfg).state_dict().items()}
    for name in ("mask_head.2.weight", "dir_head.0.weight", "dir_head.1.running_var"):
        fewer = {k: t for k, t in weights.items() if k != f"module.{name}"}
        with pytest.raises(ValueError, match="1 tensors do not fit"):
            convert_weights(fewer, "openseg", shapes)
    with pytest.raises(ValueError, match="NEGATIVE_SLOPE is 0.0, expected 0.01"):
        arguments = ["--from", "openseg", str(file), str(tmp_path / "out.pth")]
        tool.main([*arguments, "--config-file", str(CONFIG), "--opts", *PLAIN])
