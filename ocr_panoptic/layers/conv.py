"""Convolution -> norm -> ReLU, with the norm folded into the convolution wherever it is affine.

Shape shorthand: N images, I input channels, O output channels, h w feature size.
"""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from detectron2.layers import Conv2d, FrozenBatchNorm2d, get_norm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def affine_of_norm(norm: nn.Module | None) -> tuple[Tensor, Tensor] | None:
    """
    The per-channel map ``scale * x + shift`` that a norm computes, if it computes one.

    Batch norms do once they use their running statistics (evaluation mode, or frozen). Norms
    that depend on their input (GN, LN, batch norms in training mode) do not.

    Args:
        norm: a norm layer of Detectron2, or None.

    Returns:
        (scale [O], shift [O]) in float32 or better, or None where the norm is no such map.
    """
    frozen = isinstance(norm, FrozenBatchNorm2d)
    if not frozen and not (isinstance(norm, _BatchNorm) and not norm.training):
        return None
    if norm.running_var is None:
        return None
    dtype = torch.promote_types(norm.running_var.dtype, torch.float32)
    scale = torch.rsqrt(norm.running_var.to(dtype) + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.to(dtype)
    shift = -norm.running_mean.to(dtype) * scale
    if norm.bias is not None:
        shift = shift + norm.bias.to(dtype)
    return scale, shift


def apply_norm(norm: nn.Module | None, x: Tensor) -> Tensor:
    """
    Apply a norm. A batch norm in training mode that sees a single value per channel uses its
    running statistics and leaves them unchanged: one value has no variance, and PyTorch raises
    an error for it. This happens to the keys of OCR, N x O x K x 1, for one image and one class,
    and to pooled images for one image. A SyncBatchNorm of several processes sees more values.

    Args:
        norm: a norm layer, or None.
        x: [N, O, h, w]

    Returns:
        [N, O, h, w]
    """
    if norm is None:
        return x
    one_value = x.numel() == x.shape[1] and not _is_synchronised(norm)
    if isinstance(norm, _BatchNorm) and norm.training and one_value:
        return F.batch_norm(
            x, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
        )
    return norm(x)


def _is_synchronised(norm: nn.Module) -> bool:
    if not isinstance(norm, nn.SyncBatchNorm) or not dist.is_initialized():
        return False
    return dist.get_world_size(norm.process_group) > 1


def pixelwise(
    weight: Tensor, x: Tensor, bias: Tensor | None = None, add_to: Tensor | None = None
) -> Tensor:
    """
    A 1x1 convolution as one matrix product per image: on a CPU it takes two thirds of the time
    of ``conv2d``.

    Args:
        weight: [O, I], or [N, O, I] with weights of its own for each image
        x: [N, I, P]
        bias: [O] or None
        add_to: [N, O, P], to which the result is added in place, or None

    Returns:
        [N, O, P]
    """
    weight = weight.expand(x.shape[0], -1, -1)
    if add_to is None:
        y = torch.bmm(weight, x)
    else:  # autocast leaves operations in place alone
        y = add_to.baddbmm_(weight.to(add_to.dtype), x.to(add_to.dtype))
    return y if bias is None else y.add_(bias[:, None])


class ConvNormReLU(Conv2d):
    """
    ``conv -> norm -> ReLU``, each transform function of the paper (phi, psi, delta, rho, g).

    The parameters are named as in Detectron2's ``Conv2d``: ``weight``, ``bias`` (only without a
    norm) and ``norm.*``. Weight and bias start as PyTorch's convolutions do, U(-b, b) with
    b = 1 / sqrt(I k k), as in openseg.pytorch and HRNet-OCR. Detectron2's heads start larger
    (``c2_msra_fill``, std sqrt(2 / (O k k))); docs/camvid_study.md measures what that costs.

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
            norm=get_norm(norm, out_channels),
            activation=partial(F.leaky_relu, negative_slope=negative_slope),
        )
        self.negative_slope = negative_slope

    def linear_part(self) -> tuple[Tensor, Tensor | None, nn.Module | None]:
        """
        Returns:
            (weight [O, I, k, k], bias [O] or None, norm that is still to be applied or None).
            The norm is part of weight and bias where it folds (see :func:`affine_of_norm`).
        """
        affine = affine_of_norm(self.norm)
        if affine is None:
            return self.weight, self.bias, self.norm
        scale, shift = affine
        if self.bias is not None:
            shift = shift + scale * self.bias.to(scale.dtype)
        weight = self.weight.to(scale.dtype) * scale[:, None, None, None]
        return weight.to(self.weight.dtype), shift.to(self.weight.dtype), None

    def forward(self, x: Tensor) -> Tensor:
        """
        Args:
            x: [N, I, h, w]

        Returns:
            [N, O, h, w]
        """
        weight, bias, norm = self.linear_part()
        if self.kernel_size == (1, 1):
            y = pixelwise(weight.flatten(1), x.flatten(2), bias).unflatten(2, x.shape[2:])
        else:
            y = F.conv2d(x, weight, bias, padding=self.padding, dilation=self.dilation)
        return self.activate(apply_norm(norm, y))

    def activate(self, x: Tensor) -> Tensor:
        """The ReLU, in place."""
        return F.leaky_relu_(x, self.negative_slope) if self.negative_slope else x.relu_()
