"""Detectron2's dilated ResNet, layer by layer."""

import pytest
import torch
import torch.nn.functional as F
from detectron2.modeling import build_backbone

from support.segmentors import make_resnet_cfg


@pytest.mark.slow
def test_contracted_dilation():
    """The taps of each kernel show half the dilation in the first block of the dilated stages."""
    cfg = make_resnet_cfg(50)
    for contracted, first in ((False, (2, 4)), (True, (1, 2))):
        cfg.MODEL.RESNETS.CONTRACT_DILATION = contracted
        backbone = build_backbone(cfg)
        for stage, dilation, expected in (
            (backbone.res4, 2, first[0]),
            (backbone.res5, 4, first[1]),
        ):
            blocks = [block.conv2 for block in stage]
            assert [c.dilation for c in blocks] == [(expected,) * 2] + [(dilation,) * 2] * (
                len(blocks) - 1
            )
            assert all(c.padding == c.dilation for c in blocks)
        assert backbone(torch.zeros(1, 3, 64, 96))["res5"].shape[2:] == (8, 12)


@pytest.mark.slow
def test_ceil_mode_of_the_stem():
    """
    The pooling has one more window for sides of 64 pixels.

    The stem's convolutions give 32 pixels. Windows of 3 at steps of 2 start 16 times inside, from
    -1 on, and once more at 31, with the last pixel and the border. Images have four channels.
    """
    cfg = make_resnet_cfg(50, "MODEL.PIXEL_MEAN", "[1.0, 2.0, 3.0, 4.0]")
    cfg.MODEL.RESNETS.STEM_CEIL_MODE = True
    stem = build_backbone(cfg).stem.eval()
    x = torch.randn(1, 4, 64, 66)
    with torch.no_grad():
        pooled = stem(x)
        y = x
        for conv in (stem.conv1, stem.conv2, stem.conv3):
            y = F.relu(conv(y))
    assert pooled.shape[2:] == (17, 17)
    for row, column in ((0, 0), (5, 7), (16, 16), (16, 3)):
        top, left = max(2 * row - 1, 0), max(2 * column - 1, 0)
        window = y[0, :, top : 2 * row + 2, left : 2 * column + 2]
        assert torch.equal(pooled[0, :, row, column], window.amax((1, 2)))


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("DEPTH", 18, "DEPTH is 18; .* 50, 101 or 152 .* MODEL.TIMM.NAME resnet18"),
        ("STEM_TYPE", "basic", "STEM_CEIL_MODE True needs STEM_TYPE deeplab"),
    ],
)
def test_unknown_dilated_resnets(key, value, message):
    cfg = make_resnet_cfg(50, "MODEL.RESNETS.STEM_CEIL_MODE", True)
    cfg.MODEL.RESNETS[key] = value
    with pytest.raises(ValueError, match=message):
        build_backbone(cfg)
