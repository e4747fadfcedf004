"""The images that timm's published weights expect."""

from collections.abc import Mapping
from typing import Any

import timm

from .addresses import TIMM


def timm_record(network: str, file: str) -> Mapping[str, Any] | None:
    """
    Return the settings that weights expect, for :func:`.settings.check_settings`.

    They are RGB images with the mean and deviation of the training.

    Args:
        network: timm's name of the network, MODEL.TIMM.NAME.
        file: path or address of its weights, whose name tells which of timm's weights they are
            (convnext_tiny.fb_in1k.safetensors, timm://..., a folder of the hub's cache). If it does
            not, any mean and deviation of timm's weights of this network is allowed.

    Returns:
        None if timm has no weights of this network
    """
    architecture = network.partition(".")[0]
    names = timm.list_pretrained(f"{architecture}.*")
    # "x.in22k_ft_in1k" holds "x.in22k".
    named = max((name for name in names if name in file), key=len, default="")
    if not named and network in names:
        named = network
    if not named and file == f"{TIMM}{architecture}":
        named = architecture  # timm's default weights
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
    """Scale statistics of images with values up to 1 to values up to 255."""
    return tuple(round(255 * value, 3) for value in values)
