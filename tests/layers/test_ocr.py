"""
The OCR layer against a float64 NumPy reference, written from the equations of the paper: loops
over images, pixels and regions, no torch, nothing moved or folded.
"""

import numpy as np
import pytest
import torch
from torch import nn

from ocr_panoptic.layers import OCR, gather_regions, pixel_region_relation

EPS = 1e-5


def softmax(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max())
    return e / e.sum()


def conv_bn_relu(p: dict, prefix: str, samples: np.ndarray, training: bool) -> np.ndarray:
    """1x1 conv -> BN -> ReLU of samples [number of positions of the batch, channels]."""
    weight = p[f"{prefix}.weight"][:, :, 0, 0]
    y = samples @ weight.T
    if training:
        mean, var = y.mean(axis=0), y.var(axis=0)
    else:
        mean, var = p[f"{prefix}.norm.running_mean"], p[f"{prefix}.norm.running_var"]
    y = (y - mean) / np.sqrt(var + EPS) * p[f"{prefix}.norm.weight"] + p[f"{prefix}.norm.bias"]
    return np.maximum(y, 0)


def reference(p: dict, x: np.ndarray, m: np.ndarray, convs: int, scaled: bool, training: bool):
    """z [N, O, h, w] of the paper's equations. The statistics of the norms in training are those
    of all pixels (or all regions) of the batch."""
    n, c, h, w = x.shape
    k = m.shape[1]
    pixels = x.reshape(n, c, h * w).transpose(0, 2, 1)  # [N, P, C]
    regions = np.zeros((n, k, c))
    for b in range(n):
        for region in range(k):
            degrees = softmax(m[b, region].reshape(-1))
            for i in range(h * w):
                regions[b, region] += degrees[i] * pixels[b, i]

    def transform(name: str, samples: np.ndarray) -> np.ndarray:
        out = samples.reshape(-1, samples.shape[-1])
        names = [f"{name}.{i}" for i in range(convs)] if name in ("phi", "psi") else [name]
        for layer in names:
            out = conv_bn_relu(p, layer, out, training)
        return out.reshape(*samples.shape[:-1], -1)

    query, key, value = transform("phi", pixels), transform("psi", regions), None
    value = transform("delta", regions)
    context = np.zeros((n, h * w, value.shape[-1]))
    for b in range(n):
        for i in range(h * w):
            kappa = key[b] @ query[b, i]
            relation = softmax(kappa / np.sqrt(key.shape[-1]) if scaled else kappa)
            for region in range(k):
                context[b, i] += relation[region] * value[b, region]
    y = transform("rho", context)
    z = transform("g", np.concatenate([pixels, y], axis=2))
    return z.transpose(0, 2, 1).reshape(n, -1, h, w)


def make_layer(convs: int = 2, scaled: bool = True, norm: str = "BN", channels=(6, 4, 8)) -> OCR:
    torch.manual_seed(1)
    layer = OCR(*channels, norm=norm, transform_convs=convs, scale_relation=scaled, dropout=0.0)
    for module in layer.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.2, 0.5)
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return layer.double()


def arrays(layer: OCR) -> dict[str, np.ndarray]:
    return {k: v.detach().numpy().copy() for k, v in layer.state_dict().items()}


def inputs(n=2, k=5, h=3, w=5, c=6):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, c, h, w, generator=generator, dtype=torch.float64)
    m = 3 * torch.randn(n, k, h, w, generator=generator, dtype=torch.float64)
    return x, m


SIZES = [
    dict(n=2, k=5, h=3, w=5),  # odd sizes
    dict(n=1, k=5, h=7, w=1),
    dict(n=2, k=1, h=3, w=5),  # one region
    dict(n=1, k=3, h=1, w=1),  # one pixel
]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("convs", [1, 2])
@pytest.mark.parametrize("scaled", [True, False])
def test_evaluation_equals_the_equations(size, convs, scaled):
    layer = make_layer(convs, scaled).eval()
    x, m = inputs(**size)
    expected = reference(arrays(layer), x.numpy(), m.numpy(), convs, scaled, training=False)
    actual = layer(x, m).detach().numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11)
    assert actual.shape == (size["n"], 8, size["h"], size["w"])
    assert expected.std() > 0.1  # not a comparison of zeros


@pytest.mark.parametrize("size", SIZES[:3], ids=str)
@pytest.mark.parametrize("convs", [1, 2])
def test_training_equals_the_equations(size, convs):
    layer = make_layer(convs).train()
    x, m = inputs(**size)
    expected = reference(arrays(layer), x.numpy(), m.numpy(), convs, True, training=True)
    np.testing.assert_allclose(layer(x, m).detach().numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("training", [False, True])
def test_gradients_equal_differences_of_the_equations(training):
    """Directional derivatives of sum(cos(z) * weights) along random directions of x, m and every
    parameter, by central differences of the NumPy reference."""
    layer = make_layer().train(training)
    x, m = inputs()
    parameters = arrays(layer)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(2, 8, 3, 5))

    def objective(p: dict, x: np.ndarray, m: np.ndarray) -> float:
        return float((np.cos(reference(p, x, m, 2, True, training)) * weights).sum())

    x.requires_grad_()
    m.requires_grad_()
    (layer(x, m).cos() * torch.from_numpy(weights)).sum().backward()
    gradients = {name: p.grad.numpy() for name, p in layer.named_parameters()}
    gradients.update(x=x.grad.numpy(), m=m.grad.numpy())
    step = 1e-6
    for name, gradient in gradients.items():
        direction = rng.normal(size=gradient.shape)
        values = []
        for sign in (1, -1):
            p, xs, ms = dict(parameters), x.detach().numpy(), m.detach().numpy()
            if name == "x":
                xs = xs + sign * step * direction
            elif name == "m":
                ms = ms + sign * step * direction
            else:
                p[name] = p[name] + sign * step * direction
            values.append(objective(p, xs, ms))
        expected = (values[0] - values[1]) / (2 * step)
        actual = float((gradient * direction).sum())
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6), name
        assert abs(expected) > 1e-6, f"{name} has no influence"


@pytest.mark.parametrize("norm", ["", "BN", "FrozenBN", "GN", "LN", "SyncBN"])
@pytest.mark.parametrize("training", [False, True])
def test_every_norm_equals_the_explicit_composition(norm, training):
    """The layer against its own modules, called one after another as the paper draws them, with
    Detectron2's own Conv2d.forward (nothing folded, moved or split)."""
    if norm == "SyncBN" and training:
        pytest.skip("PyTorch's SyncBatchNorm trains on GPUs only")
    from detectron2.layers import Conv2d

    torch.manual_seed(0)
    layer = OCR(32, 32, 32, norm=norm, dropout=0.0).double().train(training)
    x, m = inputs(c=32)

    def plain(conv, x):
        return Conv2d.forward(conv, x)

    with torch.no_grad():
        actual = layer(x, m)
        f = torch.einsum("nkp,ncp->nck", m.flatten(2).softmax(2), x.flatten(2))[..., None]
        query, key, value = x, f, plain(layer.delta, f)
        for phi, psi in zip(layer.phi, layer.psi):
            query, key = plain(phi, query), plain(psi, key)
        w = (torch.einsum("ndhw,ndk->nkhw", query, key[..., 0]) / 32**0.5).softmax(1)
        y = plain(layer.rho, torch.einsum("nkhw,ndk->ndhw", w, value[..., 0]))
        expected = plain(layer.g, torch.cat([x, y], dim=1))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)
    assert expected.std() > 0.01


def test_one_image_and_one_region_train():
    """psi and delta see one value per channel; their batch norms use the running statistics."""
    layer = make_layer().train()
    x, m = inputs(n=1, k=1)
    before = layer.delta.norm.running_mean.clone()
    layer(x, m).sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    assert torch.equal(layer.delta.norm.running_mean, before)
    assert not torch.equal(layer.rho.norm.running_mean, torch.zeros(8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["autocast", "cast"])
def test_half_precision_agrees_with_float32(dtype, mode):
    """At 128 x 256 pixels the mean weight of the gather is 1 / 32768, below float16's smallest
    normal number: a gather in float16 loses it."""
    torch.manual_seed(0)
    layer = OCR(64, 32, 64, norm="BN", dropout=0.0).eval()
    x = torch.randn(1, 64, 128, 256).relu() + torch.linspace(0, 1, 64)[None, :, None, None]
    m = torch.randn(1, 19, 128, 256)
    with torch.no_grad():
        expected = layer(x, m)
        if mode == "autocast":
            with torch.autocast("cpu", dtype=dtype):
                actual = layer(x, m)
            f = gather_regions(x.to(dtype), m.to(dtype))
        else:
            f = gather_regions(x.to(dtype), m.to(dtype))
            actual = layer.to(dtype)(x.to(dtype), m.to(dtype))
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    scale = expected.abs().max()
    assert (actual.float() - expected).abs().max() / scale < tolerance
    assert actual.dtype == dtype and f.dtype == dtype
    exact = gather_regions(x.double(), m.double())
    assert ((f.double() - exact).abs().max() / exact.abs().max()) < tolerance


def test_gather_of_uniform_regions_is_the_mean():
    x, _ = inputs()
    f = gather_regions(x, torch.zeros(2, 4, 3, 5, dtype=torch.float64))
    torch.testing.assert_close(f, x.mean(dim=(2, 3))[:, :, None, None].expand(2, 6, 4, 1))


def test_gather_of_a_certain_region_is_the_pixel():
    x, _ = inputs()
    m = torch.full((2, 1, 3, 5), -1e4, dtype=torch.float64)
    m[:, :, 1, 2] = 0
    torch.testing.assert_close(gather_regions(x, m)[..., 0, 0], x[:, :, 1, 2])


def test_gather_names_both_sizes():
    with pytest.raises(ValueError, match=r"\(1, 4, 3, 5\).*\(1, 2, 6, 10\)"):
        gather_regions(torch.zeros(1, 4, 3, 5), torch.zeros(1, 2, 6, 10))


def test_relation_hand_worked():
    """One pixel with phi(x) = (1, 2); psi(f) = (3, 0) and (0, 1): kappa = 3 and 2."""
    queries = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1)
    keys = torch.tensor([[3.0, 0.0], [0.0, 1.0]]).view(1, 2, 2, 1)
    w = pixel_region_relation(queries, keys, 1.0)
    assert w[0, :, 0].tolist() == pytest.approx([0.7310586, 0.2689414], abs=1e-6)
    w = pixel_region_relation(queries, keys, 0.5)
    assert w[0, :, 0].tolist() == pytest.approx([0.6224593, 0.3775407], abs=1e-6)


def test_dropout_drops_channels_in_training_only():
    layer = OCR(6, 4, 64, norm="", dropout=0.5).train()
    x, m = (t.float() for t in inputs())
    torch.manual_seed(0)
    dropped = (layer(x, m).flatten(2) == 0).all(dim=2).float().mean()
    kept = (layer.eval()(x, m).flatten(2) == 0).all(dim=2).float().mean()
    assert dropped > kept + 0.2


def test_needs_a_transform():
    with pytest.raises(ValueError, match="transform_convs is 0"):
        OCR(transform_convs=0)


def test_parameters_of_the_published_module():
    """The published code's layer (two convolutions in phi and psi, norms instead of biases):
    2 (512 + 256) 256 + 512 256 + 256 512 + 1024 512 weights, 2 x (5 x 256 + 2 x 512) of norms."""
    count = sum(p.numel() for p in OCR().parameters())
    assert count == 2 * (512 + 256) * 256 + 2 * 512 * 256 + 1024 * 512 + 2 * (5 * 256 + 2 * 512)
