"""Backbones of semantic models: dilated ResNets and HRNets, by what each layer does."""

import pytest
import torch
import torch.nn.functional as F
from detectron2.modeling import build_backbone

from ocr_panoptic.modeling import TimmBackbone
from support.segmentors import make_cfg, make_resnet_cfg


@pytest.mark.parametrize("align_corners, twice", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("size, half", [((8, 12), (4, 6)), ((7, 11), (4, 6))])
def test_hrnet_adds_its_branches_by_bilinear_upsampling(align_corners, twice, size, half):
    """Two branches: the fine one gets the coarse one's map enlarged, the coarse one the fine one's
    by a convolution of stride 2. Odd sides have no exact half."""
    torch.manual_seed(0)
    options = {"align_corners": align_corners, "enlarge_twice": twice}
    backbone = TimmBackbone("hrnet_w18_small_v2", norm="BN", **options)
    module = backbone.body.stage2[0].eval()
    fine, coarse = torch.randn(1, 18, *size), torch.randn(1, 36, *half)
    fine_out, coarse_out = module([fine, coarse])
    a, b = module.branches[0](fine), module.branches[1](coarse)
    up, down = module.fuse_layers[0][1](b), module.fuse_layers[1][0](a)
    if twice:  # that size is one too large for odd sides
        up = F.interpolate(up, scale_factor=2, mode="bilinear", align_corners=False)
    up = F.interpolate(up, size=size, mode="bilinear", align_corners=align_corners)
    torch.testing.assert_close(fine_out, F.relu(a + up))
    torch.testing.assert_close(coarse_out, F.relu(down + b))


@pytest.mark.slow
def test_hrnet2x_has_five_branches_and_learns_them():
    backbone = TimmBackbone("hrnet2x_w20", norm="BN")
    backbone.read(list(backbone.output_shape()))
    maps = backbone(torch.randn(2, 3, 45, 61))
    sizes = [(23, 31), (12, 16), (6, 8), (3, 4), (2, 2)]
    assert [m.shape[1:] for m in maps.values()] == [(20 * 2**i, *s) for i, s in enumerate(sizes)]
    sum(m.sum() for m in maps.values()).backward()
    assert all(p.grad is not None for p in backbone.parameters())


@pytest.mark.slow
def test_contracted_dilation():
    """Half the dilation in the first block of the dilated stages, by the taps of each kernel."""
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
    """64 pixels: 32 after the stem's convolutions; windows of 3 at steps of 2 from -1 on start
    16 times inside, and once more at 31, with the last pixel and the border."""
    cfg = make_resnet_cfg(50)
    cfg.MODEL.RESNETS.STEM_CEIL_MODE = True
    stem = build_backbone(cfg).stem.eval()
    x = torch.randn(1, 3, 64, 66)
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
        ("RES5_DILATION", 1, "are 2 and 1; 2 and 4 give stride 8, .*1 and 2 .* 16, 1 and 1 .* 32"),
        ("STEM_TYPE", "deep", "STEM_TYPE is deep; it is deeplab .* or basic"),
    ],
)
def test_dilated_resnet_that_does_not_exist(key, value, message):
    cfg = make_resnet_cfg(50)
    cfg.MODEL.RESNETS[key] = value
    with pytest.raises(ValueError, match=message):
        build_backbone(cfg)


@pytest.mark.slow
def test_output_strides():
    """Dilated ResNet: 8 for stages 3 and 4. HRNet: 4, 8, 16, 32 with 48, 96, 192, 384 channels,
    whose concatenation has 720. Declared and real."""
    for cfg in (make_resnet_cfg(50), make_cfg()):
        backbone, head = build_backbone(cfg), cfg.MODEL.SEM_SEG_HEAD
        features = backbone(torch.zeros(1, 3, 64, 96))
        for name in (*head.IN_FEATURES, *head.COARSE_IN_FEATURES):
            assert backbone.output_shape()[name].stride == 8
            assert features[name].shape[2:] == (8, 12)
    hrnet = TimmBackbone("hrnet_w48", norm="BN")
    with torch.no_grad():
        features = hrnet(torch.zeros(1, 3, 64, 96))
    for i, channels in ((1, 48), (2, 96), (3, 192), (4, 384)):
        shape, stride = hrnet.output_shape()[f"stage{i}"], 2 ** (i + 1)
        assert (shape.channels, shape.stride) == (channels, stride)
        assert features[f"stage{i}"].shape == (1, channels, 64 // stride, 96 // stride)
