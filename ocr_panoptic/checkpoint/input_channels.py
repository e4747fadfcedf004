"""Weights for colour images in a network for images of another number of channels."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from timm.models import adapt_input_conv

COLOURS = 3


def adapt_input_channels(
    weights: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], channels: int
) -> Mapping[str, Any]:
    """
    The weights with the convolution that reads the image as timm makes it for other images: for one
    channel the sum over the colours, for several the colours again and again, times 3 / channels.

    It is known by its shape, as names differ among files: a convolution of the backbone of the same
    shape has as many input channels as the image.

    Args:
        weights: tensors by their names in the file.
        shapes: of the model's.
        channels: C, of the images.

    Returns:
        ``weights`` itself where there is nothing to adapt
    """
    if channels == COLOURS:
        return weights
    wanted = {
        (shape[0], COLOURS, *shape[2:])
        for name, shape in shapes.items()
        if name.startswith("backbone.") and len(shape) == 4 and shape[1] == channels
    }
    found = {
        name: adapt_input_conv(channels, torch.as_tensor(value))
        for name, value in weights.items()
        if (shape := tuple(getattr(value, "shape", ()))) in wanted and shapes.get(name) != shape
    }
    if found:
        logging.getLogger(__name__).warning(
            "%s: of weights for images of %d channels, adapted to %d",
            ", ".join(found),
            COLOURS,
            channels,
        )
    return {**weights, **found} if found else weights
