"""Settings that weights expect of the config, apart from shapes: recorded in files that were
converted."""

import logging
from collections.abc import Mapping
from typing import Any

from detectron2.config import CfgNode

from ocr_panoptic.errors import UserError

# In a checkpoint, next to "model"; in the metadata of a .safetensors file, as JSON.
RECORD = "conversion"
# In a checkpoint of a training, next to "model".
IDENTITY = "identity"


def check_recorded(file: str, record: object) -> None:
    """Refuse what no conversion has written as its record; None is a file without one."""
    if record is None:
        return
    is_mapping = isinstance(record, Mapping) and {"source", "file"} <= record.keys()
    settings = record.get("settings") if is_mapping else None
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise UserError(
            f"{file}: its record of where the weights come from cannot be read; convert the "
            "original file again (ocr-panoptic convert)."
        )


def differing_values(cfg: CfgNode, expected: Mapping[str, Any]) -> dict[str, list]:
    """Return the keys of the config whose value is not the expected one, nor in an expected
    frozenset (where tuples stand for lists): key -> the allowed values, the least first."""
    differing = {}
    for key, value in expected.items():
        allowed = sorted(value) if isinstance(value, frozenset) else (value,)
        allowed = [list(one) if isinstance(one, tuple) else one for one in allowed]
        found = recorded_value(cfg, key)
        if key in ("MODEL.PIXEL_MEAN", "MODEL.PIXEL_STD") and isinstance(allowed[0], list):
            found = found[: len(allowed[0])]  # colour images say nothing of further channels
        if found not in allowed:
            differing[key] = allowed
    return differing


def differing_settings(cfg: CfgNode, expected: Mapping[str, Any]) -> list[str]:
    """Describe each of :func:`differing_values` in a line."""
    return [
        f"{key} is {recorded_value(cfg, key)}, expected {' or '.join(map(str, allowed))}"
        for key, allowed in differing_values(cfg, expected).items()
    ]


def check_settings(cfg: CfgNode, record: Mapping[str, Any] | None, *, strict: bool) -> None:
    """
    Compare the config with what weights are known to expect.

    Args:
        record: :attr:`.SafeCheckpointer.record`; None where nothing is known.
        strict: raise a ValueError instead of warn. For evaluation: its numbers would be wrong. A
            training may go on from the weights in another way.
    """
    faults = differing_settings(cfg, record["settings"]) if record else []
    if not faults:
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
    """Return the record for weights that a training with this config goes on to make."""
    return {**record, "settings": {key: recorded_value(cfg, key) for key in record["settings"]}}


def recorded_value(cfg: CfgNode, key: str) -> Any:
    """Return the value of a key such as MODEL.OCR.NORM, a tuple as a list; "unknown" for a key that
    does not exist, which an older or newer version may have recorded."""
    for part in key.split("."):
        if part not in cfg:
            return "unknown"
        cfg = cfg[part]
    return list(cfg) if isinstance(cfg, tuple) else cfg
