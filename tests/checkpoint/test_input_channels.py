"""Weights for colour images in networks for others: timm's own conversion, and who refuses it."""

import pickle

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer
from ocr_panoptic.engine import load_config
from support.backbones import Model
from support.tiny_runs import OCR_CONFIG

FIRST = {
    "resnet18": "conv1",
    "resnet10t": "conv1.0",
    "tf_efficientnet_lite0": "conv_stem",
    "regnety_002": "stem.conv",
}


def with_fpn(channels: int, network: str = "") -> Model:
    """An FPN on a network of timm or Detectron2's ResNet-18."""
    cfg = load_config(str(OCR_CONFIG), ["MODEL.RESNETS.NORM", "BN", "MODEL.TIMM.NORM", "BN"])
    cfg.MODEL.PIXEL_MEAN = [0.0] * channels
    if network:
        cfg.MODEL.BACKBONE.NAME, cfg.MODEL.TIMM.NAME = "build_timm_fpn_backbone", network
    return Model(cfg)


@pytest.mark.slow
@pytest.mark.parametrize(
    "network, channels",
    [*(("resnet18", channels) for channels in (1, 7)), *((name, 4) for name in FIRST)],
)
def test_as_timm_converts_its_own_files(tmp_path, network, channels):
    file = str(tmp_path / "imagenet.safetensors")
    torch.manual_seed(0)
    save_file(timm.create_model(network).state_dict(), file)
    overlay = {"file": file}
    theirs = timm.create_model(
        network, pretrained=True, in_chans=channels, pretrained_cfg_overlay=overlay
    )
    model = with_fpn(channels, network)
    SafeCheckpointer(model, min_share=0.9).load(file)
    ours = model.backbone.bottom_up.body.state_dict()
    first = f"{FIRST[network]}.weight"
    assert ours[first].shape[1] == channels
    for name, value in ours.items():
        assert torch.equal(value, theirs.state_dict()[name]), name


def test_pickles_of_the_model_zoo(tmp_path):
    """Caffe2's names are matched by Detectron2; BGR comes first; hand-worked."""
    torch.manual_seed(0)
    colours = torch.randn(64, 3, 7, 7)
    file = tmp_path / "R-18.pkl"
    file.write_bytes(pickle.dumps({"conv1_w": colours.numpy()}))
    model = with_fpn(5)
    SafeCheckpointer(model).load(str(file))
    found = model.backbone.bottom_up.stem.conv1.weight
    assert torch.equal(found, 0.6 * colours[:, [0, 1, 2, 0, 1]])


@pytest.mark.slow
def test_a_checkpoint_of_this_package(tmp_path, caplog):
    """Starts a training on other images, and is not evaluated on them."""
    before, after = with_fpn(3), with_fpn(4)
    for model in (before, after):
        model.backbone.of_three = nn.Conv2d(3, 64, 1)  # as large in both: stays as it is
    file = str(tmp_path / "model_final.pth")
    torch.save({"model": before.state_dict()}, file)
    SafeCheckpointer(after).load(file)
    first = "backbone.bottom_up.stem.conv1.weight"
    expected = before.state_dict()
    expected[first] = 0.75 * expected[first][:, [0, 1, 2, 0]]
    for name, value in after.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert f"{first}: of weights for images of 3 channels, adapted to 4" in caplog.text
    with pytest.raises(ValueError, match=f"do not fit the model: 1 of .*(?s:.*){first}"):
        SafeCheckpointer(after, strict=True).load(file)
    # The other way round there is nothing to be had.
    torch.save({"model": after.state_dict()}, file)
    checkpointer = SafeCheckpointer(with_fpn(3))
    checkpointer.load(file)
    assert list(checkpointer.fit.faults) == [first]
