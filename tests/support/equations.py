"""
The papers' equations in float64 with einsum, one operation after another.

No operation is folded, moved or fused. The modules under test contribute only their parameters. The
gradients of these equations (by autograd) are the reference for the modules' gradients.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocr_panoptic.layers import ConvNormReLU
from ocr_panoptic.layers.transformer import SelfAttentionUnit, TransformerBlock


def randomise(layer: nn.Module) -> nn.Module:
    """Convert a layer to float64, and randomise its norms, biases and all-zero parameters."""
    ranges = {"weight": (0.5, 1.5), "bias": (-0.2, 0.5)}
    ranges |= {"running_mean": (-0.5, 0.5), "running_var": (0.5, 2.0)}
    for module in layer.modules():
        for name, limits in ranges.items():
            tensor = getattr(module, name, None)
            if isinstance(tensor, Tensor) and tensor.dim() == 1:
                nn.init.uniform_(tensor, *limits)
    for parameter in layer.parameters():
        if not parameter.any():
            nn.init.uniform_(parameter, -1, 1)
    return layer.double()


def inputs(n=2, k=5, h=3, w=5, c=8) -> tuple[Tensor, Tensor]:
    """Return random pixel representations x [n, c, h, w] and coarse logits m [n, k, h, w]."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, c, h, w, generator=generator, dtype=torch.float64)
    m = 3 * torch.randn(n, k, h, w, generator=generator, dtype=torch.float64)
    return x, m


def softmax(t: Tensor, dim: int) -> Tensor:
    e = t.exp()
    return e / e.sum(dim=dim, keepdim=True)


def conv_norm_relu(module: nn.Module, t: Tensor) -> Tensor:
    """Apply conv, batch norm and ReLU to t [N, C, h, w]; training uses batch statistics."""
    y = F.conv2d(t, module.weight, padding=module.padding, dilation=module.dilation)
    norm = module.norm
    mean, var = norm.running_mean, norm.running_var
    if norm.training:
        mean = y.mean(dim=(0, 2, 3))
        var = ((y - mean[:, None, None]) ** 2).mean(dim=(0, 2, 3))
    scale = norm.weight / (var + norm.eps).sqrt()
    y = (y - mean[:, None, None]) * scale[:, None, None] + norm.bias[:, None, None]
    return torch.where(y > 0, y, module.negative_slope * y)


def gather(x: Tensor, m: Tensor) -> Tensor:
    """Return OCR's object region representations f [N, C, K, 1]."""
    return torch.einsum("nkp,ncp->nck", softmax(m.flatten(2), 2), x.flatten(2))[..., None]


def relation(layer: nn.Module, x: Tensor, f: Tensor, scaled: bool = True) -> Tensor:
    """Return OCR's relation w [N, K, h w]; ``scaled`` divides logits by sqrt(key channels)."""
    for phi, psi in zip(layer.phi, layer.psi):
        x, f = conv_norm_relu(phi, x), conv_norm_relu(psi, f)
    kappa = torch.einsum("ndp,ndk->nkp", x.flatten(2), f[..., 0])
    return softmax(kappa / math.sqrt(f.shape[1]) if scaled else kappa, 1)


def context(layer: nn.Module, w: Tensor, f: Tensor, size: torch.Size) -> Tensor:
    """Return OCR's object contextual representations [N, C', h, w] for a relation w [N, K, h w]."""
    values = conv_norm_relu(layer.delta, f)[..., 0]
    return conv_norm_relu(layer.rho, torch.einsum("nkp,ndk->ndp", w, values).unflatten(2, size))


def augment(layer: nn.Module, x: Tensor, w: Tensor, f: Tensor) -> Tensor:
    """Return OCR's augmented representations [N, C', h, w]."""
    y = context(layer, w, f, x.shape[2:])
    return conv_norm_relu(layer.g, torch.cat([x, y], dim=1))


def linear(module: nn.Conv2d, t: Tensor) -> Tensor:
    """Apply a 1x1 convolution to t [N, C, h, w]."""
    y = torch.einsum("oc,nchw->nohw", module.weight[..., 0, 0], t)
    return y if module.bias is None else y + module.bias[:, None, None]


def assert_equal_with_gradients(
    layer: nn.Module,
    reference: Callable[..., Tensor],
    *inputs: Tensor,
    without_gradient: tuple[str, ...] = (),
) -> None:
    """
    Check that a layer's output and gradients equal a reference's, with plain and leaky ReLUs.

    The gradients of inputs and parameters are 0 only for the parameters ``without_gradient``.
    """
    for slope in (0.0, 0.3):
        results = []
        for module in layer.modules():
            if isinstance(module, ConvNormReLU):
                module.negative_slope = slope
        for function in (layer, reference):
            layer.zero_grad()
            tensors = [t.detach().clone().requires_grad_() for t in inputs]
            z = function(*tensors)
            weights = torch.linspace(-1, 1, z.numel(), dtype=z.dtype).view_as(z).sin()
            (z.cos() * weights).sum().backward()
            gradients = {name: p.grad for name, p in layer.named_parameters()}
            results.append((z, [gradients, [t.grad for t in tensors]]))
        (z, gradients), (expected, expected_gradients) = results
        torch.testing.assert_close(z, expected, rtol=0, atol=1e-11)
        assert expected.std() > 0.1  # zeros would prove nothing
        torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=1e-10)
        for name, gradient in gradients[0].items():
            assert (gradient.abs().sum() > 1e-6) == (name not in without_gradient), name


def attention(queries, keys, values):
    """Return softmax(Q K^T / sqrt(d)) V for queries, keys and values [N, L, d]."""
    logits = torch.einsum("nld,nmd->nlm", queries, keys) / math.sqrt(keys.shape[2])
    return torch.einsum("nlm,nmc->nlc", softmax(logits, 2), values)


def layer_norm(module: nn.LayerNorm, t: torch.Tensor) -> torch.Tensor:
    centred = t - t.mean(dim=-1, keepdim=True)
    deviation = ((centred**2).mean(dim=-1, keepdim=True) + module.eps).sqrt()
    return centred / deviation * module.weight + module.bias


def dense(module: nn.Linear, t: torch.Tensor) -> torch.Tensor:
    y = torch.einsum("oi,nli->nlo", module.weight, t)
    return y if module.bias is None else y + module.bias


def self_attention(unit: SelfAttentionUnit, tokens: torch.Tensor) -> torch.Tensor:
    n = layer_norm(unit.norm, tokens)
    projected = (dense(projection, n) for projection in (unit.query, unit.key, unit.value))
    return tokens + dense(unit.output, attention(*projected))


def transformer_block(module: TransformerBlock, tokens: torch.Tensor) -> torch.Tensor:
    tokens = self_attention(module.attention, tokens)
    norm, hidden, _, output = module.ffn
    h = dense(hidden, layer_norm(norm, tokens))
    gelu = h * (1 + torch.erf(h / math.sqrt(2))) / 2
    return tokens + dense(output, gelu)
