"""The OCR layer in mixed precision on a GPU against float32 on the CPU."""

import copy

import pytest
import torch

from ocr_panoptic.layers import OCR


@pytest.mark.gpu
@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 1e-3), (torch.float16, 5e-2), (torch.bfloat16, 2e-1)]
)
@pytest.mark.parametrize("training", [False, True])
def test_gpu_equals_cpu(monkeypatch, dtype, tolerance, training):
    """
    Output and gradients. Tolerances are relative to the norm of a tensor; with the same autocast
    on the CPU these differ by up to 0.018 in float16 and 0.055 in bfloat16.
    """
    for backend in (torch.backends.cudnn, torch.backends.cuda.matmul):
        monkeypatch.setattr(backend, "allow_tf32", False)  # float32 means float32
    torch.manual_seed(0)
    expected = OCR(64, 32, 64, norm="BN", dropout=0.0).train(training)
    layer = copy.deepcopy(expected).cuda()
    x, m = torch.randn(2, 64, 33, 41), 3 * torch.randn(2, 19, 33, 41)
    results = []
    for module, device in ((expected, "cpu"), (layer, "cuda")):
        inputs = [t.clone().to(device).requires_grad_() for t in (x, m)]
        lower = device == "cuda" and dtype != torch.float32
        with torch.autocast(device, dtype=dtype, enabled=lower):
            z = module(*inputs)
        (z.float().square().sum() / 64).backward()  # gradients within float16's range
        gradients = [t.grad for t in (*inputs, module.delta.weight)]
        results.append([t.detach().float().cpu() for t in (z, *gradients)])
    for on_cpu, on_gpu in zip(*results):
        assert torch.isfinite(on_gpu).all()
        assert (on_gpu - on_cpu).norm() <= tolerance * on_cpu.norm()


@pytest.mark.gpu
def test_regions_of_many_pixels_do_not_overflow_in_float16():
    """The softmax over a large map has values below float16's smallest: it is summed in float32."""
    torch.manual_seed(0)
    layer = OCR(8, 4, 8, norm="", dropout=0.0).eval()
    x, m = torch.randn(1, 8, 512, 1024), torch.zeros(1, 3, 512, 1024)
    with torch.no_grad():
        expected = layer(x, m)
        with torch.autocast("cuda", dtype=torch.float16):
            found = layer.cuda()(x.cuda(), m.cuda()).float().cpu()
    assert (found - expected).abs().max() <= 2e-2 * expected.abs().max()
