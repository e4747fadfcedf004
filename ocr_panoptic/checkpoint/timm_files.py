"""The images that weights which timm publishes expect."""

from collections.abc import Mapping
from typing import Any

import timm

from .addresses import TIMM


def timm_record(network: str, file: str) -> Mapping[str, Any] | None:
    """
    Return what :func:`.settings.check_settings` compares the config with: RGB images with the mean
    and deviation of the training.

    Args:
        network: timm's name of the network, MODEL.TIMM.NAME.
        file: path or address of its weights. Which of timm's weights they are, the name says
            (convnext_tiny.fb_in1k.safetensors, timm://..., a folder of the hub's cache); where it
            does not, any mean and deviation of timm's weights of this network will do.

    Returns:
        None where timm has no weights of this network
    """
    architecture = network.partition(".")[0]
    names = timm.list_pretrained(f"{architecture}.*")
    # "x.in22k_ft_in1k" holds "x.in22k".
    named = max((name for name in names if name in file), key=len, default="")
    if not named and network in names:
        named = network
    if not named and file == f"{TIMM}{architecture}":
        named = architecture  # timm's choice
    found = [timm.get_pretrained_cfg(name) for name in ([named] if named else names)]
    if not found:
        return None
    return {
        "source": f"timm's {named or architecture}",
        "file": file,
        "settings": {
            "INPUT.FORMAT": "RGB",
            "MODEL.PIXEL_MEAN": frozenset(_of_bytes(cfg.mean) for cfg in found),
            "MODEL.PIXEL_STD": frozenset(_of_bytes(cfg.std) for cfg in found),
        },
    }


def _of_bytes(values: tuple[float, ...]) -> tuple[float, ...]:
    """Adapt weights for images of values to 1 to images of values to 255."""
    return tuple(round(255 * value, 3) for value in values)
