"""Converted SegFix weights of openseg.pytorch give the logits of the published network."""

from pathlib import Path

import pytest
import torch
from detectron2.modeling import build_model

from ocr_panoptic.checkpoint.convert import convert_weights
from ocr_panoptic.engine import build_trained_model
from support import published_networks as published
from support.conversions import PLAIN, convert, image, load, network_input, shapes_of, write
from support.published_files import FILES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("uninitialized")]

CONFIG = "openseg_segfix"
W18 = ("MODEL.TIMM.NAME", "hrnet_w18")
HRNET2X = (
    *("MODEL.TIMM.NAME", "hrnet2x_w20"),
    *("MODEL.SEM_SEG_HEAD.IN_FEATURES", str([f"stage{i}" for i in range(1, 6)])),
)


def make(width: int, opts: tuple[str, ...], options: dict, tmp_path: Path):
    """Config, published file, network's input, logits of the published network."""
    cfg, weights = load(CONFIG, "TEST.OPTIMIZED", "False", *opts), published.Weights(**options)
    x = network_input(cfg, image())
    with torch.no_grad():
        logits = published.openseg_segfix(weights, x, width)
    return cfg, write(tmp_path / "published.pth", weights.tensors, "module."), x, logits


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
    convert(CONFIG, file, cfg.MODEL.WEIGHTS)
    weights = ("MODEL.WEIGHTS", cfg.MODEL.WEIGHTS, "OUTPUT_DIR", "./output/converted")
    written = (tmp_path / "converted.yaml").read_text()
    assert written == FILES[CONFIG].load(*opts, *weights).dump()
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
    shapes = shapes_of(build_model(cfg))
    for name in ("mask_head.2.weight", "dir_head.0.weight", "dir_head.1.running_var"):
        fewer = {k: t for k, t in weights.items() if k != f"module.{name}"}
        with pytest.raises(ValueError, match="1 tensors do not fit"):
            convert_weights(fewer, "openseg", shapes)
    with pytest.raises(ValueError, match="NEGATIVE_SLOPE is 0.0, expected 0.01"):
        convert(CONFIG, file, tmp_path / "out.pth", *PLAIN)
