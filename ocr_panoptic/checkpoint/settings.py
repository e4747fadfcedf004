"""Compares a config with the settings that weights expect, such as the pixel mean and std."""

import logging
from collections.abc import Mapping
from typing import Any

from detectron2.config import CfgNode

from ocr_panoptic.config.files import values_by_key
from ocr_panoptic.errors import UserError

# Key of a checkpoint, beside "model"; key of a .safetensors file's metadata, as JSON.
RECORD = "conversion"
# Key in a run's checkpoint, beside "model".
IDENTITY = "identity"
UNKNOWN = "unknown"  # value of a key that this version lacks


def differing_values(cfg: CfgNode, expected: Mapping[str, Any]) -> dict[str, list]:
    """
    Find the config keys with an unexpected value; return the sorted allowed values of each key.

    A frozenset in ``expected`` allows each of its elements.
    """
    values, differing = values_by_key(cfg), {}
    for key, value in expected.items():
        allowed = sorted(value) if isinstance(value, frozenset) else (value,)
        allowed = [list(option) if isinstance(option, tuple) else option for option in allowed]
        found = values.get(key, UNKNOWN)
        if key in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD") and isinstance(allowed[0], list):
            found = found[: len(allowed[0])]  # ignore channels beyond the colours
        if found not in allowed:
            differing[key] = allowed
    return differing


def differing_settings(cfg: CfgNode, expected: Mapping[str, Any]) -> list[str]:
    """Return a line of text for each config key that has an unexpected value."""
    values = values_by_key(cfg)
    return [
        f"{key} is {values.get(key, UNKNOWN)}, expected {' or '.join(map(str, allowed))}"
        for key, allowed in differing_values(cfg, expected).items()
    ]


def check_settings(cfg: CfgNode, record: Mapping[str, Any] | None, *, strict: bool) -> None:
    """
    Warn, or raise UserError, if the config differs from the settings that the weights expect.

    Args:
        record: origin of the weights, and the expected settings; None if unknown.
        strict: whether to raise an error instead of logging a warning.
    """
    if not record or not (faults := differing_settings(cfg, record["settings"])):
        return
    message = (
        f"The config does not fit the weights from {record['source']} ({record['file']}):\n  "
        + "\n  ".join(faults)
        + "\nSet these keys to the expected values, or use the config that the weights were "
        "converted or trained with."
    )
    if strict:
        raise UserError(message)
    logging.getLogger(__name__).warning(message)


def settings_of(cfg: CfgNode, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``record`` in which the settings have the config's values."""
    values = values_by_key(cfg)
    settings = {key: values.get(key, UNKNOWN) for key in record["settings"]}
    return {**record, "settings": settings}
