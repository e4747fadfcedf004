"""Convolutions as inference wants them: with their norms in them, and in channels-last memory."""

import torch
import torch.nn.functional as F
from detectron2.layers import Conv2d
from torch import nn

from .conv import affine_of_norm


def fold_into(conv: nn.Conv2d, norm: nn.Module | None) -> bool:
    """
    Let the convolution compute its norm too, if that is affine, see :func:`.affine_of_norm`: the
    product is formed in float32 or better. Its former parameters, which another module may hold,
    are left as they are.

    Returns:
        whether it does, and the norm has to go
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
    Fold the norm of every ``Conv2d`` of Detectron2 in the module into it, in place. GN and LN stay,
    as do batch norms that are in training mode.
    """
    for conv in module.modules():
        if isinstance(conv, Conv2d):
            if fold_into(conv, conv.norm):
                conv.norm = None
            if conv.activation is F.relu:  # of a map that nobody else sees
                conv.activation = F.relu_


def to_channels_last(module: nn.Module) -> None:
    """
    Put the weights of every convolution into channels-last memory, in place, the former ones being
    left as they are. A convolution with such weights gives such maps, whatever it sees, and the
    layers after it keep them: oneDNN and tensor cores then work without copies in other layouts.
    """
    for conv in module.modules():
        if isinstance(conv, nn.Conv2d | nn.ConvTranspose2d):
            weight = conv.weight.detach().contiguous(memory_format=torch.channels_last)
            conv.weight = nn.Parameter(weight, requires_grad=False)
