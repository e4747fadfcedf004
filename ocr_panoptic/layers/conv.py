"""
Convolution -> norm -> ReLU, with the norm folded into the convolution wherever it is affine.

Shape shorthand: N images, I input channels, O output channels, h w feature size.
"""

from functools import partial

import torch
import torch.nn.functional as F
from detectron2.layers import Conv2d, NaiveSyncBatchNorm, get_norm
from detectron2.utils import comm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .sync_batch_norm import CPUSyncBatchNorm

SYNCHRONISED = (nn.SyncBatchNorm, NaiveSyncBatchNorm)


def affine_of_norm(norm: nn.Module | None) -> tuple[Tensor, Tensor] | None:
    """
    The per-channel map ``scale * x + shift`` that a norm computes, if it computes one: (scale [O],
    shift [O]) in float32 or better, or None.

    Batch norms do once they use their running statistics (evaluation mode, or frozen). Norms
    that depend on their input (GN, LN, batch norms in training mode) do not.
    """
    if not _is_affine(norm):
        return None
    dtype = torch.promote_types(norm.running_var.dtype, torch.float32)
    scale = torch.rsqrt(norm.running_var.to(dtype) + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.to(dtype)
    shift = -norm.running_mean.to(dtype) * scale
    if norm.bias is not None:
        shift = shift + norm.bias.to(dtype)
    return scale, shift


def _is_affine(norm: nn.Module | None) -> bool:
    learns = isinstance(norm, _BatchNorm) and norm.training
    return not learns and getattr(norm, "running_var", None) is not None


def apply_norm(norm: nn.Module | None, x: Tensor) -> Tensor:
    """
    Apply a norm to [N, O, h, w]. A batch norm in training mode that sees a single value per channel
    uses its running statistics and leaves them unchanged: one value has no variance, and PyTorch
    raises an error for it. This happens to the keys of OCR, N x O x K x 1, for one image and one
    class, and to pooled images for one image. Synchronised norms of several processes see more.
    """
    if norm is None:
        return x
    several = isinstance(norm, SYNCHRONISED) and comm.get_world_size() > 1
    one_value = x.numel() == x.shape[1] and not several
    if isinstance(norm, _BatchNorm) and norm.training and one_value:
        return F.batch_norm(
            x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
        )
    return norm(x)


def pixelwise(
    weight: Tensor, x: Tensor, bias: Tensor | None = None, add_to: Tensor | None = None
) -> Tensor:
    """
    A 1x1 convolution of x [N, I, P] with weight [O, I], or [N, O, I] for each image its own, and
    bias [O]. The result [N, O, P] is added in place to ``add_to``, if that is given.

    It has the memory order of x: channel after channel, or pixel after pixel (channels last). On a
    CPU it takes two thirds of the time of ``conv2d`` in the former.

    On a GPU it is a convolution where the images share the weights, so that it has the precision of
    all others: by PyTorch's defaults cuDNN's convolutions use TF32, and matrix products do not.
    """
    if x.is_cuda and weight.dim() == 2:
        y = F.conv1d(x, weight[:, :, None], bias)
        return y if add_to is None else add_to.add_(y)
    weight = weight.expand(x.shape[0], -1, -1)
    if is_pixel_major(x):
        y = torch.bmm(x.transpose(1, 2), weight.transpose(1, 2)).transpose(1, 2)
        y = y if add_to is None else add_to.add_(y)
    elif add_to is None:
        y = torch.bmm(weight, x)
    else:  # autocast leaves operations in place alone
        y = add_to.baddbmm_(weight.to(add_to.dtype), x.to(add_to.dtype))
    return y if bias is None else y.add_(bias[:, None])


def is_pixel_major(x: Tensor) -> bool:
    """Return whether the channels of a pixel of x [N, I, P] are neighbours in memory."""
    return x.shape[1] > 1 and x.shape[2] > 1 and x.stride(1) == 1


def as_map(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """[N, C, P] as [N, C, h, w], in its memory order."""
    if is_pixel_major(pixels):
        # unflatten alone would give a single image a stride by which PyTorch takes its memory for
        # channel after channel, and copies it before a convolution.
        return pixels.transpose(1, 2).unflatten(1, size).permute(0, 3, 1, 2)
    return pixels.unflatten(2, size)


def _stays_channels_last(x: Tensor, training: bool) -> bool:
    """Return whether a 1x1 convolution of x is one in channels-last memory. In the training on a
    CPU the products of :func:`pixelwise` take less time, in that memory too."""
    is_channels_last = x.is_contiguous(memory_format=torch.channels_last)
    return is_channels_last and (x.is_cuda or not training)


class ConvNormReLU(Conv2d):
    """
    ``conv -> norm -> ReLU``, each transform function of the paper (phi, psi, delta, rho, g).

    The parameters are named as in Detectron2's ``Conv2d``: ``weight``, ``bias`` (only without a
    norm) and ``norm.*``. Weight and bias start as PyTorch's convolutions do, U(-b, b) with
    b = 1 / sqrt(I k k), as in openseg.pytorch and HRNet-OCR. Detectron2's heads start larger
    (``c2_msra_fill``, std sqrt(2 / (O k k))); docs/architecture.md measures what that costs.

    Args:
        in_channels, out_channels: I and O.
        kernel_size: odd; the input is padded so that its size is kept.
        dilation: of the kernel.
        norm: any name that Detectron2's ``get_norm`` knows, "" for none.
        negative_slope: of the ReLU for negative values, 0.01 for InPlaceABN's leaky one.
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

    @property
    def is_affine(self) -> bool:
        """Return whether the norm folds into the convolution, or there is none."""
        return self.norm is None or _is_affine(self.norm)

    def linear_part(self) -> tuple[Tensor, Tensor | None]:
        """
        The convolution, for schemes that apply it in another way than :meth:`forward` does, before
        :meth:`finish`: (weight [O, I, k, k], bias [O] or None), with the norm in them where it
        folds (see :func:`affine_of_norm`).
        """
        affine = affine_of_norm(self.norm)
        if affine is None:
            return self.weight, self.bias
        scale, shift = affine
        weight = self.weight.to(scale.dtype) * scale[:, None, None, None]
        return weight.to(self.weight.dtype), shift.to(self.weight.dtype)

    def finish(self, y: Tensor, dropout: nn.Dropout2d | None = None) -> Tensor:
        """The norm, where it is not folded, and the ReLU, of y [N, O, h, w], the result of
        :meth:`linear_part`, which may be overwritten. Dropout of the result is applied before the
        ReLU, with which a factor of 0 or more can change places: one map less is kept for the
        backward pass."""
        if not _is_affine(self.norm):
            y = apply_norm(self.norm, y)
        if dropout is not None:
            y = dropout(y)
        return F.leaky_relu_(y, self.negative_slope) if self.negative_slope else y.relu_()

    def forward(self, *maps: Tensor, dropout: nn.Dropout2d | None = None) -> Tensor:
        """
        Compute [N, O, h, w] of maps [N, I_j, h, w], which are taken as if they were concatenated:
        the I_j add up to I. A 1x1 convolution of them is a sum of products. ``dropout`` is for the
        result, see :meth:`finish`.
        """
        weight, bias = self.linear_part()
        if self.kernel_size != (1, 1):
            x = torch.cat(maps, dim=1) if len(maps) > 1 else maps[0]
            y = F.conv2d(x, weight, bias, padding=self.padding, dilation=self.dilation)
            return self.finish(y, dropout)
        if _stays_channels_last(maps[0], self.training):
            return self.finish(self._channels_last(weight, bias, maps), dropout)
        first, *others = weight.flatten(1).split([t.shape[1] for t in maps], dim=1)
        y = pixelwise(first, maps[0].flatten(2), bias)
        for weight, t in zip(others, maps[1:]):
            y = pixelwise(weight, t.flatten(2), add_to=y)
        return self.finish(as_map(y, maps[0].shape[2:]), dropout)

    @staticmethod
    def _channels_last(weight: Tensor, bias: Tensor | None, maps: tuple[Tensor, ...]) -> Tensor:
        """The sum of products of :meth:`forward` of maps in channels-last memory, which oneDNN and
        tensor cores take as they are, as convolutions. Small maps do not go to oneDNN, and come
        back channel after channel."""
        parts = weight.split([t.shape[1] for t in maps], dim=1)
        y = F.conv2d(maps[0], parts[0], bias).contiguous(memory_format=torch.channels_last)
        for part, t in zip(parts[1:], maps[1:]):
            y = y.add_(F.conv2d(t, part))
        return y
