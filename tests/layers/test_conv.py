"""Folding of norms into convolutions."""

import pytest
import torch
import torch.nn.functional as F
from detectron2.layers import Conv2d, get_norm
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ocr_panoptic.layers import ConvNormReLU, fold_norms
from ocr_panoptic.layers import conv as conv_module
from ocr_panoptic.layers.conv import SYNCHRONISED, apply_norm, as_map
from support.equations import randomise

NORMS = ["", "BN", "SyncBN", "FrozenBN", "GN", "LN", "naiveSyncBN"]


def make_input() -> torch.Tensor:
    x = torch.linspace(-1, 1, 2 * 8 * 15, dtype=torch.float64).view(2, 8, 3, 5).sin()
    return x.requires_grad_()


@pytest.mark.parametrize(
    "norm, training",  # SyncBN trains only in several processes
    [*((norm, False) for norm in NORMS), *((norm, True) for norm in NORMS if "Sync" not in norm)],
)
@pytest.mark.parametrize("kernel_size, dilation", [(1, 1), (3, 1), (3, 2)])
def test_equals_detectron2_conv(norm, training, kernel_size, dilation):
    torch.manual_seed(0)
    conv = randomise(ConvNormReLU(8, 64, norm=norm, kernel_size=kernel_size, dilation=dilation))
    names = "in_channels", "out_channels", "kernel_size", "padding", "dilation"
    options = {name: getattr(conv, name) for name in names}
    plain = Conv2d(**options, bias=not norm, norm=get_norm(norm, 64), activation=F.relu).double()
    plain.load_state_dict(conv.state_dict())
    results = []
    for layer in (conv, plain):
        y = layer.train(training)(x := make_input())
        y.square().sum().backward()
        gradients = {k: p.grad for k, p in layer.named_parameters()}
        results.append((y, x.grad, gradients, dict(layer.named_buffers())))
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("norm", ["", "BN", "GN"])
@pytest.mark.parametrize("training", [False, True])
def test_parts_equal_their_concatenation(monkeypatch, norm, training):
    """In channels-last memory, as on a GPU, results stay in this memory layout."""
    torch.manual_seed(0)
    conv = randomise(ConvNormReLU(8, 64, norm=norm, negative_slope=0.3)).train(training)
    results = []
    for sizes, stays in (([8], False), ([3, 1, 4], False), ([3, 5], True)):
        monkeypatch.setattr(conv_module, "_stays_channels_last", lambda *_, stays=stays: stays)
        conv.zero_grad()
        maps = (x := make_input()).split(sizes, dim=1)
        if stays:
            maps = [m.contiguous(memory_format=torch.channels_last) for m in maps]
        y = conv(*maps)
        y.square().sum().backward()
        results.append((y, x.grad, [p.grad for p in conv.parameters()]))
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=1e-10, atol=1e-12)
    assert y.is_contiguous(memory_format=torch.channels_last) and not y.is_contiguous()


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_folds_if_it_is_affine(norm):
    conv = randomise(Conv2d(4, 64, 3, bias=True, norm=get_norm(norm, 64), activation=F.relu))
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    if "BN" in norm and norm != "FrozenBN":  # in training mode, it does not fold
        fold_norms(conv.train())
        assert conv.norm is not None
    expected = conv.eval()(x)
    fold_norms(conv)
    assert (conv.norm is None) == (norm not in ("GN", "LN"))
    torch.testing.assert_close(conv(x), expected, rtol=1e-5, atol=1e-6)


def test_one_value_per_channel_uses_running_statistics():
    norm = randomise(nn.BatchNorm2d(3))
    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64).view(1, 3, 1, 1)
    expected = norm.eval()(x)
    before = norm.running_mean.clone()
    actual = apply_norm(norm.train(), x)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    assert torch.equal(norm.running_mean, before)


@pytest.mark.parametrize("kind", SYNCHRONISED)
def test_one_value_in_each_of_several_processes_is_synchronised(monkeypatch, kind):
    """The pooled image has a single value per GPU if a GPU has one image."""
    norm = kind(3).train()
    x = torch.tensor([1.0, -2.0, 0.5]).view(1, 3, 1, 1)
    torch.testing.assert_close(apply_norm(norm, x), x / (1 + norm.eps) ** 0.5)
    monkeypatch.setattr("detectron2.utils.comm.get_world_size", lambda: 2)
    monkeypatch.setattr(kind, "forward", lambda self, x: x + 100)
    assert torch.equal(apply_norm(norm, x), x + 100)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gpu_stays_in_channels_last_memory(device, training, pretended_gpu):
    """This also holds in training, although products are faster on a CPU."""
    with FakeTensorMode(), torch.device(device):
        conv = ConvNormReLU(8, 32, norm="BN").train(training)
        maps = [torch.empty(2, c, 5, 7).to(memory_format=torch.channels_last) for c in (3, 5)]
        z = conv(*maps)
        stays = conv_module._stays_channels_last(maps[0], training)
    assert stays == (device == "cuda" or not training)
    assert z.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("negative_slope", [0.0, 0.2])
def test_dropout_before_the_relu_equals_dropout_after_it(negative_slope):
    torch.manual_seed(0)
    conv = randomise(ConvNormReLU(8, 64, norm="BN", negative_slope=negative_slope))
    dropout, results = nn.Dropout2d(0.4), []
    for forward in (lambda x: conv(x, dropout=dropout), lambda x: dropout(conv(x))):
        torch.manual_seed(1)
        y = forward(x := make_input())
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *conv.parameters()])))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert 20 < (y == 0).flatten(2).all(2).sum() < 128


@pytest.mark.parametrize("images", [1, 2])
def test_maps_of_pixel_major_results_are_channels_last(images):
    """The next convolution needs exact strides, which ``is_contiguous`` does not check."""
    pixels = torch.randn(images, 15, 4).transpose(1, 2)
    x = as_map(pixels, (3, 5))
    torch.testing.assert_close(x, pixels.reshape(images, 4, 3, 5), rtol=0, atol=0)
    assert x.stride() == torch.empty_like(x, memory_format=torch.channels_last).stride()
    assert as_map(pixels.contiguous(), (3, 5)).is_contiguous()
