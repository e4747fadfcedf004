"""
Networks built by mmsegmentation itself give equal logits after conversion.

The test is skipped unless mmsegmentation is installed, which nothing else needs. It works with any
PyTorch, without compiled operations, from its own folder:

    pip install --no-deps --target /tmp/mmseg mmsegmentation==1.2.2 mmengine==0.10.7 \
        mmcv-lite==2.1.0 addict yapf platformdirs prettytable wcwidth rich ftfy regex
    PYTHONPATH=/tmp/mmseg python -m pytest tests/checkpoint/test_mmsegmentation.py
"""

import sys
import types

import pytest
import torch
from detectron2.modeling import build_model
from torch import nn

from ocr_panoptic.checkpoint.conversion import convert_weights
from support.conversions import image, load, network_input, shapes_of

pytest.importorskip("mmcv", reason="mmsegmentation is not installed")


class NoOperations(types.ModuleType):
    """Stands for mmcv.ops, which modules of mmsegmentation import but these networks do not use."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@pytest.fixture(scope="module")
def mmseg():
    sys.modules.setdefault("mmcv.ops", NoOperations("mmcv.ops"))
    return pytest.importorskip("mmseg.models", reason="mmsegmentation is not installed")


class Cascade(nn.Module):
    """mmsegmentation's CascadeEncoderDecoder without its losses."""

    def __init__(self, backbone: nn.Module, coarse: nn.Module, final: nn.Module):
        super().__init__()
        self.backbone, self.decode_head = backbone, nn.ModuleList([coarse, final])

    def forward(self, x):
        features = self.backbone(x)
        coarse = self.decode_head[0](features)
        return coarse, self.decode_head[1](features, coarse)


HEAD = dict(num_classes=19, norm_cfg=dict(type="BN"), align_corners=False, dropout_ratio=0.1)


def hrnet(mmseg, width: int, blocks: int, modules: tuple[int, int, int]) -> Cascade:
    """Return the network of configs/_base_/models/ocrnet_hr18.py, or of its children."""
    channels = [width * 2**i for i in range(4)]
    extra = {}
    for stage, count in zip((1, 2, 3, 4), (1, *modules), strict=True):
        extra[f"stage{stage}"] = dict(num_modules=count, num_branches=stage)
        extra[f"stage{stage}"] |= dict(block="BASIC", num_blocks=(blocks,) * stage)
        extra[f"stage{stage}"] |= dict(num_channels=tuple(channels[:stage]))
    extra["stage1"] |= dict(block="BOTTLENECK", num_channels=(64,))
    inputs = dict(in_channels=channels, in_index=(0, 1, 2, 3), input_transform="resize_concat")
    coarse = dict(channels=sum(channels), kernel_size=1, num_convs=1, concat_input=False)
    return Cascade(
        mmseg.backbones.HRNet(extra, norm_cfg=dict(type="BN")),
        mmseg.decode_heads.FCNHead(**coarse, **inputs, **HEAD),
        mmseg.decode_heads.OCRHead(channels=512, ocr_channels=256, **inputs, **HEAD),
    )


def resnet_101(mmseg) -> Cascade:
    """Return the network of configs/_base_/models/ocrnet_r50-d8.py with depth 101."""
    layout = dict(num_stages=4, out_indices=(0, 1, 2, 3), dilations=(1, 1, 2, 4))
    layout |= dict(strides=(1, 2, 1, 1), style="pytorch", contract_dilation=True)
    backbone = mmseg.backbones.ResNetV1c(depth=101, norm_cfg=dict(type="BN"), **layout)
    coarse = dict(in_channels=1024, in_index=2, channels=256, num_convs=1, concat_input=False)
    final = dict(in_channels=2048, in_index=3, channels=512, ocr_channels=256)
    return Cascade(
        backbone,
        mmseg.decode_heads.FCNHead(**coarse, **HEAD),
        mmseg.decode_heads.OCRHead(**final, **HEAD),
    )


NETWORKS = {
    "mmseg_HR18_cityscapes": lambda mmseg: hrnet(mmseg, 18, 4, (1, 4, 3)),
    "mmseg_HR18s_cityscapes": lambda mmseg: hrnet(mmseg, 18, 2, (1, 3, 2)),
    "mmseg_R_101_cityscapes": resnet_101,
}


@pytest.mark.parametrize("size", [(65, 97), (64, 96)])
@pytest.mark.parametrize("config", NETWORKS)
@torch.no_grad()
def test_logits(mmseg, config, size):
    torch.manual_seed(0)
    theirs = NETWORKS[config](mmseg)
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    for _ in range(3):  # to fill the running statistics
        theirs.train()(torch.randn(4, 3, 64, 96))
    cfg = load(config)
    ours = build_model(cfg).eval()
    found = convert_weights(theirs.state_dict(), "mmseg", shapes_of(ours))
    ours.load_state_dict(found.weights)
    x = image(*size)
    expected = theirs.eval()(network_input(cfg, x))
    for mine, other in zip(ours.layers([{"image": x}]), expected, strict=True):
        assert other.std() > 0.1
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)
