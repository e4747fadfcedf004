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
    Adapt the convolution that reads the image, as timm does: for one channel it is the sum over the
    colours, for several the colours again and again, times 3 / channels.

    The convolution is known by its shape, as names differ among files: a convolution of the
    backbone with as many outputs has as many input channels as the image. The kernel may have
    another size: patches of a ViT are resampled after this.

    Args:
        weights: tensors by their names in the file.
        shapes: shapes of the model's tensors.
        channels: C of the images.

    Returns:
        ``weights`` itself where there is nothing to adapt
    """
    if channels == COLOURS:
        return weights
    wanted = {
        shape[0]
        for name, shape in shapes.items()
        if name.startswith("backbone.") and len(shape) == 4 and shape[1] == channels
    }
    found = {
        name: adapt_input_conv(channels, torch.as_tensor(value))
        for name, value in weights.items()
        if len(shape := tuple(getattr(value, "shape", ()))) == 4
        and (shape[0] in wanted and shape[1] == COLOURS and shapes.get(name) != shape)
    }
    if found:
        logging.getLogger(__name__).warning(
            "%s: of weights for images of %d channels, adapted to %d",
            ", ".join(found),
            COLOURS,
            channels,
        )
    return {**weights, **found} if found else weights
