"""Folding of norms into convolutions."""

import pytest
import torch
import torch.nn.functional as F
from detectron2.layers import Conv2d, get_norm
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ocr_panoptic.layers import ConvNormReLU
from ocr_panoptic.layers import conv as conv_module
from ocr_panoptic.layers.conv import SYNCHRONISED, affine_of_norm, apply_norm, as_map, pixelwise

NORMS = ["", "BN", "SyncBN", "FrozenBN", "GN", "LN", "naiveSyncBN"]


def randomise(module: nn.Module) -> None:
    """Set statistics and affine parameters as after training, not 0 and 1."""
    for m in module.modules():
        for name, low, high in (
            ("weight", 0.5, 1.5),
            ("bias", -0.5, 0.5),
            ("running_mean", -0.5, 0.5),
            ("running_var", 0.2, 2.0),
        ):
            tensor = getattr(m, name, None)
            if tensor is not None and tensor.dim() == 1:
                nn.init.uniform_(tensor, low, high)


def assert_equal_results(forwards, parameters) -> None:
    """Check that results, and gradients of the input and of the parameters, are equal."""
    results = []
    for forward in forwards:
        x = torch.linspace(-1, 1, 2 * 8 * 15, dtype=torch.float64).view(2, 8, 3, 5).sin()
        torch.manual_seed(1)
        y = forward(x.requires_grad_())
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *parameters])))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kernel_size, dilation", [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("training", [False, True])
def test_equals_detectron2_conv(norm, kernel_size, dilation, training):
    """The reference is Detectron2's own layer with equal parameters and running statistics."""
    if training and "Sync" in norm:
        pytest.skip("needs several processes")
    torch.manual_seed(0)
    conv = ConvNormReLU(8, 64, norm=norm, kernel_size=kernel_size, dilation=dilation).double()
    randomise(conv)
    names = "in_channels", "out_channels", "kernel_size", "padding", "dilation"
    options = {name: getattr(conv, name) for name in names}
    plain = Conv2d(**options, bias=not norm, norm=get_norm(norm, 64), activation=F.relu).double()
    plain.load_state_dict(conv.state_dict())
    results = []
    for layer in (conv, plain):
        x = torch.linspace(-1, 1, 2 * 8 * 15, dtype=torch.float64).view(2, 8, 3, 5).sin()
        y = layer.train(training)(x.requires_grad_())
        y.square().sum().backward()
        gradients = {k: p.grad for k, p in layer.named_parameters()}
        results.append((y, x.grad, gradients, dict(layer.named_buffers())))
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("norm", ["", "BN", "GN"])
@pytest.mark.parametrize("training", [False, True])
def test_parts_equal_their_concatenation(norm, training):
    torch.manual_seed(0)
    conv = ConvNormReLU(8, 64, norm=norm, negative_slope=0.3).double().train(training)
    randomise(conv)
    forwards = (conv, lambda x: conv(*x.split([3, 1, 4], dim=1)))
    assert_equal_results(forwards, list(conv.parameters()))


@pytest.mark.parametrize(
    "norm, foldable", zip(NORMS, [False, True, True, True, False, False, True])
)
def test_only_affine_norms_fold(norm, foldable):
    module = get_norm(norm, 64)
    if module is not None:
        module.eval()
    assert (affine_of_norm(module) is not None) == foldable
    # Batch statistics do not fold.
    assert affine_of_norm(nn.BatchNorm2d(4).train()) is None
    assert affine_of_norm(nn.BatchNorm2d(4, track_running_stats=False).eval()) is None


def test_one_value_per_channel_uses_running_statistics():
    norm = nn.BatchNorm2d(3).double()
    randomise(norm)
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
def test_a_gpu_stays_in_channels_last_memory(device, training):
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
    conv = ConvNormReLU(8, 64, norm="BN", negative_slope=negative_slope).double()
    randomise(conv)
    dropout = nn.Dropout2d(0.4)
    forwards = (lambda x: conv(x, dropout=dropout), lambda x: dropout(conv(x)))
    assert_equal_results(forwards, list(conv.parameters()))
    dropped = (conv(torch.randn(2, 8, 3, 5).double(), dropout=dropout) == 0).flatten(2).all(2)
    assert 20 < dropped.sum() < 128


def test_pixelwise_equals_a_convolution():
    torch.manual_seed(0)
    weight, bias = torch.randn(6, 4).double(), torch.randn(6).double()
    x, add_to = torch.randn(2, 4, 15).double(), torch.randn(2, 6, 15).double()
    expected = F.conv1d(x, weight[:, :, None], bias)
    torch.testing.assert_close(pixelwise(weight, x, bias), expected, rtol=0, atol=1e-12)
    added = pixelwise(weight, x, bias, add_to=add_to.clone())
    torch.testing.assert_close(added, expected + add_to, rtol=0, atol=1e-12)


@pytest.mark.parametrize("images", [1, 2])
def test_maps_of_pixel_major_results_are_channels_last(images):
    """The next convolution needs exact strides, which ``is_contiguous`` does not check."""
    pixels = torch.randn(images, 15, 4).transpose(1, 2)
    x = as_map(pixels, (3, 5))
    torch.testing.assert_close(x, pixels.reshape(images, 4, 3, 5), rtol=0, atol=0)
    assert x.stride() == torch.empty_like(x, memory_format=torch.channels_last).stride()
    assert as_map(pixels.contiguous(), (3, 5)).is_contiguous()


@pytest.mark.parametrize("norm", ["", "BN", "GN"])
def test_training_in_channels_last_memory(monkeypatch, norm):
    """Results and gradients are equal and stay in this memory layout, also for several maps."""
    torch.manual_seed(0)
    conv = ConvNormReLU(8, 64, norm=norm, negative_slope=0.3).double()
    randomise(conv)
    x, results = torch.randn(2, 8, 3, 5, dtype=torch.float64), []
    for is_gpu in (False, True):
        monkeypatch.setattr(conv_module, "_stays_channels_last", lambda *_, is_gpu=is_gpu: is_gpu)
        conv.zero_grad()
        maps = x.detach().split([3, 5], dim=1)
        maps = [m.contiguous(memory_format=torch.channels_last).requires_grad_() for m in maps]
        y = conv(*maps)
        y.square().sum().backward()
        results.append((y, [m.grad for m in maps], [p.grad for p in conv.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not y.is_contiguous()
