"""Settings that weights need but their shapes do not imply, as recorded in converted files."""

import logging
from collections.abc import Mapping
from typing import Any

from detectron2.config import CfgNode

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.config_files import values_by_key

# Key of a checkpoint, beside "model"; key of a .safetensors file's metadata, as JSON.
RECORD = "conversion"
# Key in a run's checkpoint, beside "model".
IDENTITY = "identity"
UNKNOWN = "unknown"  # value of a key that this version lacks


def differing_values(cfg: CfgNode, expected: Mapping[str, Any]) -> dict[str, list]:
    """
    Return the allowed values, sorted, of each config key that has an unexpected value.

    If a value in ``expected`` is a frozenset, each of its elements is allowed.
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
    """Describe each config key that has an unexpected value, in one line of text per key."""
    values = values_by_key(cfg)
    return [
        f"{key} is {values.get(key, UNKNOWN)}, expected {' or '.join(map(str, allowed))}"
        for key, allowed in differing_values(cfg, expected).items()
    ]


def check_settings(cfg: CfgNode, record: Mapping[str, Any] | None, *, strict: bool) -> None:
    """
    Warn or raise an error if the config differs from the settings that the weights expect.

    Args:
        record: origin of the weights and the settings that they expect; None if unknown.
        strict: whether to raise an error instead of a warning, for evaluations.
    """
    if not record or not (faults := differing_settings(cfg, record["settings"])):
        return
    message = (
        f"The weights come from {record['source']} ({record['file']}) and expect other settings:"
        "\n  " + "\n  ".join(faults) + "\nSet these keys, or use the config of their conversion "
        "or training."
    )
    if strict:
        raise UserError(message)
    logging.getLogger(__name__).warning(message)


def settings_of(cfg: CfgNode, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``record`` in which the settings have the config's values."""
    values = values_by_key(cfg)
    settings = {key: values.get(key, UNKNOWN) for key in record["settings"]}
    return {**record, "settings": settings}
