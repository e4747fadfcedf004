"""
Convolution -> norm -> ReLU, with affine norms folded into the convolution.

Shape shorthand: N images, I input channels, O output channels, h w feature size, P = h * w pixels.
"""

import itertools
from functools import partial
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from detectron2.layers import Conv2d, NaiveSyncBatchNorm, get_norm
from detectron2.utils import comm
from fvcore.nn.distributed import differentiable_all_reduce
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

SYNCHRONISED = (nn.SyncBatchNorm, NaiveSyncBatchNorm)


def affine_of_norm(norm: nn.Module | None) -> tuple[Tensor, Tensor] | None:
    """
    Return the scale [O] and shift [O] of a norm that computes ``scale * x + shift``.

    Batch norms do so when they use their running statistics (evaluation mode, or frozen). The
    result is None for other norms: GN, LN, and batch norms in training mode.
    """
    if not is_affine(norm):
        return None
    dtype = torch.promote_types(norm.running_var.dtype, torch.float32)
    scale = torch.rsqrt(norm.running_var.to(dtype) + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.to(dtype)
    shift = -norm.running_mean.to(dtype) * scale
    if norm.bias is not None:
        shift = shift + norm.bias.to(dtype)
    return scale, shift


def is_affine(norm: nn.Module | None) -> TypeGuard[Any]:
    """Return whether a norm is affine: a batch norm that uses its running statistics."""
    learns = isinstance(norm, _BatchNorm) and norm.training
    return not learns and getattr(norm, "running_var", None) is not None


def apply_norm(norm: nn.Module | None, x: Tensor) -> Tensor:
    """
    Return x [N, O, h, w] normalised; without a norm, return x.

    If a batch norm in training mode gets a single value per channel, such as the globally pooled
    features of one image, it uses its running statistics and leaves them unchanged.
    """
    if norm is None:
        return x
    # A norm that is synchronised over several processes gets their values, too.
    several = isinstance(norm, SYNCHRONISED) and comm.get_world_size() > 1
    one_value = x.numel() == x.shape[1] and not several
    # PyTorch would raise an error here, since one value has no variance.
    if isinstance(norm, _BatchNorm) and norm.training and one_value:
        return F.batch_norm(
            x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
        )
    return norm(x)


def pixelwise(
    weight: Tensor, x: Tensor, bias: Tensor | None = None, add_to: Tensor | None = None
) -> Tensor:
    """
    Return the 1x1 convolution [N, O, P] of x, added in place to ``add_to`` if given.

    Args:
        weight: weights [O, I], or [N, O, I] if each image has its own weights.
        x: pixels [N, I, P]; the result has the same memory order.
        bias: bias [O], or None.
        add_to: tensor [N, O, P] to change in place; None for a new tensor.
    """
    # On a CPU, channels-first products take two thirds of the time of conv2d. On a GPU, weights
    # shared by all images are applied by a convolution: by default, cuDNN's convolutions use TF32
    # but matrix products do not, and all layers should have the same precision.
    if x.is_cuda and weight.dim() == 2:
        y = F.conv1d(x, weight[:, :, None], bias)
        return y if add_to is None else add_to.add_(y)
    weight = weight.expand(x.shape[0], -1, -1)
    if is_pixel_major(x):
        y = torch.bmm(x.transpose(1, 2), weight.transpose(1, 2)).transpose(1, 2)
        y = y if add_to is None else add_to.add_(y)
    elif add_to is None:
        y = torch.bmm(weight, x)
    else:  # autocast does not cast the inputs of in-place operations
        y = add_to.baddbmm_(weight.to(add_to.dtype), x.to(add_to.dtype))
    return y if bias is None else y.add_(bias[:, None])


def is_pixel_major(x: Tensor) -> bool:
    """Return whether x [N, I, P] is channels-last: a pixel's channels are adjacent in memory."""
    return x.shape[1] > 1 and x.shape[2] > 1 and x.stride(1) == 1


def as_map(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return pixels [N, C, P] as a map [N, C, h, w], in the same memory order."""
    if is_pixel_major(pixels):
        # A plain unflatten would give a single image a stride that PyTorch mistakes for channels
        # first, so that it copies the map before a convolution.
        return pixels.transpose(1, 2).unflatten(1, size).permute(0, 3, 1, 2)
    return pixels.unflatten(2, size)


def _stays_channels_last(x: Tensor, training: bool) -> bool:
    """Return True if x is channels-last, except in CPU training, which is faster channels-first."""
    return x.is_contiguous(memory_format=torch.channels_last) and (x.is_cuda or not training)


class CPUSyncBatchNorm(NaiveSyncBatchNorm):
    """
    Batch norm synchronised over processes on CPUs, which PyTorch's SyncBatchNorm does not support.

    Unlike Detectron2's ``naiveSyncBN``, this norm does not return NaN for nearly equal values, such
    as region representations at the start of training. Batch sizes can differ between processes.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x [N, C, h, w] normalised; in training, every process has to call this method."""
        if comm.get_world_size() == 1 or not self.training:
            return super().forward(x)
        dtype, channels = x.dtype, x.shape[1]
        x = x.to(self.running_mean.dtype)
        count = x.new_full((1,), x.numel() // channels)
        *sums, count = differentiable_all_reduce(torch.cat([x.sum((0, 2, 3)), count])).split(
            [channels, 1]
        )
        # naiveSyncBN subtracts the squared mean from the mean square. For nearly equal values,
        # rounding makes this difference negative, and its root NaN.
        centred = x - (mean := sums[0] / count)[:, None, None]
        var = differentiable_all_reduce(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * count / (count - 1), self.momentum)
        scale = self.weight * torch.rsqrt(var + self.eps)
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(dtype)


class ConvNormReLU(Conv2d):
    """
    A convolution, a norm and a ReLU, like each transform of the paper (phi, psi, delta, rho, g).

    The parameters are named as in Detectron2's ``Conv2d``: ``weight``, ``bias`` (only without a
    norm) and ``norm.*``. As in openseg.pytorch and HRNet-OCR, the initialisation is PyTorch's
    default: U(-b, b) with b = 1 / sqrt(I k k), for a k x k kernel. docs/architecture.md compares
    this with Detectron2's larger initial weights.

    Args:
        in_channels, out_channels: numbers of input and output channels (I, O).
        kernel_size: side k of the kernel, an odd number; padding keeps the input's size.
        dilation: dilation of the kernel.
        norm: name of the norm, as for Detectron2's ``get_norm``; "" for no norm.
        negative_slope: slope of the ReLU for negative values; InPlaceABN's leaky ReLU has 0.01.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        norm: str,
        kernel_size: int = 1,
        dilation: int = 1,
        negative_slope: float = 0.0,
    ):
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            padding=dilation * (kernel_size // 2),
            dilation=dilation,
            bias=not norm,
            norm=get_norm(CPUSyncBatchNorm if norm == "naiveSyncBN" else norm, out_channels),
            activation=partial(F.leaky_relu, negative_slope=negative_slope),
        )
        self.negative_slope = negative_slope

    def linear_part(self) -> tuple[Tensor, Tensor | None]:
        """
        Return (weight [O, I, k, k], bias [O] or None); an affine norm is folded into both.

        A caller that does the convolution itself uses these tensors, then calls :meth:`finish`.
        """
        affine = affine_of_norm(self.norm)
        if affine is None:
            return self.weight, self.bias
        scale, shift = affine
        weight = self.weight.to(scale.dtype) * scale[:, None, None, None]
        return weight.to(self.weight.dtype), shift.to(self.weight.dtype)

    def finish(self, y: Tensor, dropout: nn.Dropout2d | None = None) -> Tensor:
        """
        Return y [N, O, h, w] after the norm (unless folded), the ReLU and ``dropout``.

        y is the input convolved with the result of :meth:`linear_part`. Do not use y afterwards.
        """
        if not is_affine(self.norm):
            y = apply_norm(self.norm, y)
        # Dropout before the ReLU saves memory. The result is the same, since dropout's factors are
        # not negative.
        if dropout is not None:
            y = dropout(y)
        return F.leaky_relu_(y, self.negative_slope) if self.negative_slope else y.relu_()

    def forward(self, *maps: Tensor, dropout: nn.Dropout2d | None = None) -> Tensor:
        """
        Return the layer's output [N, O, h, w] for the concatenation of maps [N, I_j, h, w].

        The I_j must add up to I. ``dropout`` is applied to the output.
        """
        # A 1x1 convolution is a sum over the maps, so it needs no concatenation.
        weight, bias = self.linear_part()
        if self.kernel_size != (1, 1):
            x = torch.cat(maps, dim=1) if len(maps) > 1 else maps[0]
            y = F.conv2d(x, weight, bias, padding=self.padding, dilation=self.dilation)
            return self.finish(y, dropout)
        # Exported maps get convolutions, whose layout a runtime can choose, and which it can
        # quantise.
        is_exported_map = torch.compiler.is_compiling() and maps[0].shape[3] != 1
        if is_exported_map or _stays_channels_last(maps[0], self.training):
            return self.finish(self._channels_last(weight, bias, maps), dropout)
        first, *others = weight.flatten(1).split([t.shape[1] for t in maps], dim=1)
        y = pixelwise(first, maps[0].flatten(2), bias)
        for weight, t in zip(others, maps[1:]):
            y = pixelwise(weight, t.flatten(2), add_to=y)
        return self.finish(as_map(y, maps[0].shape[2:]), dropout)

    @staticmethod
    def _channels_last(weight: Tensor, bias: Tensor | None, maps: tuple[Tensor, ...]) -> Tensor:
        """Return the channels-last 1x1 convolution of concatenated channels-last maps."""
        # PyTorch's convolution of small maps on the CPU returns channels-first maps.
        ends = list(itertools.accumulate(t.shape[1] for t in maps))
        # Slices of constants are constant in an export, but those of split() are not.
        parts = [weight[:, end - t.shape[1] : end] for t, end in zip(maps, ends)]
        y = F.conv2d(maps[0], parts[0], bias).contiguous(memory_format=torch.channels_last)
        for part, t in zip(parts[1:], maps[1:]):
            y = y.add_(F.conv2d(t, part))
        return y
