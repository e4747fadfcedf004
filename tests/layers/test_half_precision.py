"""Computations in float32 keep large maps and large products in range."""

import pytest
import torch
from torch import nn

from ocr_panoptic.layers import OCR, ChannelAttention, SegmentationTransformer, gather_regions
from ocr_panoptic.layers.criss_cross import attend_criss_cross


@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)], ids=["float16", "bfloat16"]
)
@pytest.mark.parametrize("name", ["OCR", "Segmentation-Transformer"])
def test_schemes_agree_with_float32(name, dtype, tolerance):
    torch.manual_seed(0)
    of_pixels = dict(in_channels=64, key_channels=32, out_channels=64, norm="BN", dropout=0.0)
    layer = OCR(**of_pixels) if name == "OCR" else SegmentationTransformer(19, **of_pixels)
    x = torch.randn(1, 64, 32, 64).relu() + torch.linspace(0, 1, 64)[None, :, None, None]
    m = torch.randn(1, 19, 32, 64)
    regions = gather_regions if name == "OCR" else lambda x, m: layer.decode(x)
    with torch.no_grad():
        expected = layer.eval()(x, m), regions(x.double(), m.double())
        with torch.autocast("cpu", dtype=dtype):
            found = layer(x, m), regions(x.to(dtype), m.to(dtype))
    for actual, exact in zip(found, expected):
        assert actual.dtype == dtype
        assert (actual.double() - exact).abs().max() < tolerance * exact.abs().max()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("mode", ["autocast", "cast"])
def test_the_gather_of_many_pixels(device, mode):
    """1 / 500000 is 33.6 of float16's smallest steps; rounded to 34, the mean would be 1.013."""
    x, m = (torch.full((1, c, 500, 1000), v, device=device) for c, v in ((2, 1.0), (1, 0.0)))
    if mode == "cast":
        x, m = x.half(), m.half()
    with torch.autocast(device, dtype=torch.float16, enabled=mode == "autocast"):
        f = gather_regions(x, m)
    assert f.flatten().tolist() == pytest.approx([1, 1], abs=5e-3)


def test_criss_cross_attention_stays_in_the_range_of_float16():
    """64 channels of +-40 have the product 102400, and equal queries attend to equal pixels."""
    signs = torch.ones(1, 64, 3, 4, dtype=torch.float16)
    signs[:, :, :, 2:] = -1
    values = signs[:, :2].clone()
    found = attend_criss_cross(40 * signs, 40 * signs, values)
    torch.testing.assert_close(found, values)


def test_channel_attention_stays_in_the_range_of_float16():
    """Channels of 10 at 1024 pixels have the product 102400, above the largest float16."""
    module = ChannelAttention()
    nn.init.ones_(module.gamma)
    x = torch.full((1, 4, 32, 32), 10.0, dtype=torch.float16)
    with torch.no_grad():
        assert module(x).eq(20).all()
