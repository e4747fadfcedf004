"""
Measure the effective receptive field: which pixels affect a feature map's cell strongly?

The measure is the gradient of a feature's middle cell with respect to the image (Luo, Li, Urtasun
and Zemel, "Understanding the Effective Receptive Field in Deep Convolutional Neural Networks", NIPS
2016). A pixel belongs to the field if its gradient is above 1 - 95.45 % = 4.55 % of the largest
gradient. The size of the field is the square root of its number of pixels.
"""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from detectron2.modeling import Backbone
from torch import Tensor

from ocr_panoptic.errors import UserError

from .receptive import middle

THRESHOLD = 1 - 0.9545


def effective_fields(
    backbone: Backbone, images: Iterable[Tensor], seed: int = 0
) -> dict[str, Tensor]:
    """
    Return the gradient of each feature's middle cell at every pixel of the image.

    The gradient is the root mean square over the images and their channels. The cell's channels are
    summed with standard normal weights, drawn anew for each image.

    Args:
        backbone: backbone in evaluation mode.
        images: images [C, H, W] of equal size, normalised as the backbone expects.
        seed: seed of the random channel weights.

    Returns:
        gradients of each feature, float64 [H, W], by feature name
    """
    generator = torch.Generator().manual_seed(seed)
    sums: dict[str, Tensor] = {}
    count, size = 0, None
    for image in images:
        count, size = count + 1, size or image.shape
        if image.shape != size:
            raise UserError(f"The images have different sizes: {[*size]} and {[*image.shape]}")
        image = image.detach().requires_grad_()
        for name, feature in backbone(padded(image, backbone)[None]).items():
            y, x = middle(feature)
            cell = feature[0, :, y, x]
            weights = torch.randn(len(cell), generator=generator).to(cell)
            (gradient,) = torch.autograd.grad(cell @ weights, image, retain_graph=True)
            sums[name] = sums.get(name, 0) + gradient.double().square().mean(dim=0)
    if not count:
        raise UserError("There is no image to measure an effective receptive field on")
    return {name: (total / count).sqrt() for name, total in sums.items()}


def padded(image: Tensor, backbone: Backbone) -> Tensor:
    """Pad an image [C, H, W] with zeros at the bottom and right to a size the backbone accepts."""
    divisor = backbone.size_divisibility or 1
    height, width = image.shape[1:]
    return F.pad(image, (0, -width % divisor, 0, -height % divisor))


def field_size(field: Tensor) -> float:
    """
    Return the side of a square with as many pixels as an effective receptive field.

    Args:
        field: gradients [H, W] from :func:`effective_fields`
    """
    return math.sqrt((field > THRESHOLD * field.max()).sum().item())
