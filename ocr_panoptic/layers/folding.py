"""Preparation of convolutions for inference: folded norms and channels-last weights."""

import torch
import torch.nn.functional as F
from detectron2.layers import Conv2d
from torch import nn

from .conv import affine_of_norm


def fold_into(conv: nn.Conv2d, norm: nn.Module | None) -> bool:
    """
    Fold a norm into a convolution if the norm is affine; return whether it was folded.

    If the result is True, the caller has to remove the norm. The convolution gets new parameters;
    its old parameters are left unchanged, since other modules can share them.
    """
    affine = affine_of_norm(norm)
    if affine is None:
        return False
    scale, shift = affine
    weight = conv.weight.to(scale.dtype) * scale[:, None, None, None]
    bias = shift if conv.bias is None else conv.bias.to(scale.dtype) * scale + shift
    conv.weight, conv.bias = (
        nn.Parameter(part.to(conv.weight.dtype).detach(), requires_grad=False)
        for part in (weight, bias)
    )
    return True


def fold_norms(module: nn.Module) -> None:
    """
    Fold the norm of every Detectron2 ``Conv2d`` in the module into its convolution, in place.

    GN, LN and batch norms in training mode are left as they are. The ReLU of every Detectron2
    ``Conv2d`` becomes an in-place operation.
    """
    for conv in module.modules():
        if isinstance(conv, Conv2d):
            if fold_into(conv, conv.norm):
                conv.norm = None
            if conv.activation is F.relu:  # no other module reads the map
                conv.activation = F.relu_


def to_channels_last(module: nn.Module) -> None:
    """
    Replace the weights of every convolution in the module with channels-last copies.

    Convolutions with channels-last weights return channels-last maps for any input.
    """
    for conv in module.modules():
        if isinstance(conv, nn.Conv2d | nn.ConvTranspose2d):
            weight = conv.weight.detach().contiguous(memory_format=torch.channels_last)
            conv.weight = nn.Parameter(weight, requires_grad=False)
