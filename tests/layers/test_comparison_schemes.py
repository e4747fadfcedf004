"""What all schemes that OCR is compared with have in common."""

import pytest
import torch
from torch import nn

from ocr_panoptic.layers import (
    ASPP,
    PPM,
    ChannelAttention,
    ContextScheme,
    CrissCross,
    DoubleAttention,
    DualAttention,
    SelfAttention,
)
from ocr_panoptic.layers.criss_cross import attend_criss_cross

SCHEMES = {
    "PPM": lambda dropout: PPM(16, 32, norm="BN", dropout=dropout),
    "ASPP": lambda dropout: ASPP(16, 8, 32, dilations=(1, 2), norm="BN", dropout=dropout),
    "self-attention": lambda dropout: SelfAttention(16, 8, 32, norm="BN", dropout=dropout),
    "double attention": lambda dropout: DoubleAttention(4, 16, 8, 32, norm="BN", dropout=dropout),
    "DANet": lambda dropout: DualAttention(16, 32, norm="BN", dropout=dropout),
    "criss-cross": lambda dropout: CrissCross(16, 32, norm="BN", dropout=dropout),
}


@pytest.fixture(params=SCHEMES)
def make(request):
    def build(dropout: float = 0.0) -> ContextScheme:
        torch.manual_seed(0)
        scheme = SCHEMES[request.param](dropout)
        for name, parameter in scheme.named_parameters():
            if name.endswith(("gamma", "output.weight")):  # zero at the start
                nn.init.uniform_(parameter, -0.5, 0.5)
        return scheme

    return build


def features(n: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 16, 7, 9, generator=generator)


def test_mixed_precision(make):
    """Training under autocast: close to float32, with gradients of every parameter."""
    results = []
    for enabled in (False, True):
        scheme = make()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            z = scheme(features(), None)
        z.float().square().mean().backward()
        gradients = [p.grad for p in scheme.parameters()]
        assert all(g is not None and g.dtype == torch.float32 for g in gradients)
        results.append((z.float(), torch.cat([g.flatten() for g in gradients])))
    (z, gradients), (rounded_z, rounded_gradients) = results
    assert (rounded_z - z).norm() < 0.02 * z.norm()
    assert (rounded_gradients - gradients).norm() < 0.1 * gradients.norm()


def test_dropout_drops_channels_in_training_alone(make):
    plain, dropping = make(), make(dropout=0.5)
    z = plain.train()(features(), None)
    torch.manual_seed(1)
    dropped = dropping.train()(features(), None)
    kept = dropped.flatten(2).abs().sum(dim=2) > 0
    assert 16 <= kept.sum() <= 48  # of 2 x 32
    torch.testing.assert_close(dropped[kept], 2 * z[kept])
    torch.testing.assert_close(dropping.eval()(features(), None), plain.eval()(features(), None))


def test_one_image_in_training(make):
    """A pooled image is one value by channel, which has no variance; a batch norm raises then."""
    assert make().train()(features(n=1), None).isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-3), (torch.float16, 5e-2)])
def test_gpu_equals_cpu(make, monkeypatch, dtype, tolerance):
    """Output and gradient of the features, relative to the norm."""
    for backend in (torch.backends.cudnn, torch.backends.cuda.matmul):
        monkeypatch.setattr(backend, "allow_tf32", False)  # float32 means float32
    results = []
    for device in ("cpu", "cuda"):
        scheme, x = make().to(device), features().to(device).requires_grad_()
        lower = device == "cuda" and dtype != torch.float32
        with torch.autocast(device, dtype=dtype, enabled=lower):
            z = scheme(x, None)
        z.float().square().mean().backward()
        results.append([t.detach().float().cpu() for t in (z, x.grad)])
    for on_cpu, on_gpu in zip(*results):
        assert (on_gpu - on_cpu).norm() <= tolerance * on_cpu.norm()


def test_criss_cross_attention_stays_in_the_range_of_float16():
    """Queries and keys of 64 channels of +-40: their product, 102400, is above the largest
    float16. Equal ones attend to equal pixels, so the values pass through."""
    signs = torch.ones(1, 64, 3, 4, dtype=torch.float16)
    signs[:, :, :, 2:] = -1
    values = signs[:, :2].clone()
    found = attend_criss_cross(40 * signs, 40 * signs, values)
    torch.testing.assert_close(found, values)


def test_channel_attention_stays_in_the_range_of_float16():
    """Channels of 10 at 1024 pixels: their product, 102400, is above the largest float16."""
    module = ChannelAttention()
    nn.init.ones_(module.gamma)
    x = torch.full((1, 4, 32, 32), 10.0, dtype=torch.float16)
    with torch.no_grad():
        assert module(x).eq(20).all()
