"""Adapts weights for colour images to images with another number of channels."""

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
    Adapt the convolution that reads the image, as timm does.

    For one channel, the weights are summed over the colours. For several channels, the colours are
    repeated, times 3 / channels. The convolution is found by its shape, since names differ among
    files: a convolution of the backbone that has as many outputs and reads as many channels as the
    image. The kernel size may differ, since patches of a ViT are resampled later.

    Args:
        weights: tensors by their names in the file.
        shapes: shapes of the model's tensors.
        channels: C of the images.

    Returns:
        the adapted weights, or ``weights`` itself if nothing has to be adapted
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
            "%s: made for images of %d channels, adapted to %d",
            ", ".join(found),
            COLOURS,
            channels,
        )
    return {**weights, **found} if found else weights
