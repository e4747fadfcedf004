"""Find the config keys that the chosen model does not read, and refuse to set them."""

import logging

from detectron2.config import CfgNode

from ocr_panoptic.errors import UserError

from .files import default_config, quoted
from .keys import KEYS, SCHEME, Key
from .rules import Condition, schemes_reading, value_of, when

logger = logging.getLogger(__name__)


def conditions(key: Key) -> list[Condition]:
    """Return the conditions that must all hold for a model to read a key."""
    # SCHEME stands for the context schemes that read the key.
    return [
        when("MODEL.CONTEXT.NAME", *schemes_reading(key.name)) if condition is SCHEME else condition
        for condition in key.read_by
    ]


def unread_keys(cfg: CfgNode) -> set[str]:
    """Return the names of the keys that the chosen model does not read."""
    return {key.name for key in KEYS if not all(c.holds(cfg) for c in conditions(key))}


def defaults_of_unread(cfg: CfgNode) -> dict[str, str]:
    """Return overrides that reset the keys that the model does not read."""
    default = default_config()
    names = sorted(unread_keys(cfg))
    names = [name for name in names if value_of(cfg, name) != value_of(default, name)]
    return quoted({name: value_of(default, name) for name in names})


def check_unread_keys(cfg: CfgNode) -> None:
    """
    Refuse keys that differ from their defaults although the chosen model does not read them.

    If a key is unread only because the model has Detectron2's own semantic head, warn instead.
    """
    default = default_config()
    faults, idle = [], []
    for key in KEYS:
        value, usual = value_of(cfg, key.name), value_of(default, key.name)
        if value == usual:
            continue
        unmet = [condition for condition in conditions(key) if not condition.holds(cfg)]
        if any(condition.refuses for condition in unmet):
            fault = f"{key.name} is {value!r} (default {usual!r}); it has an effect only with "
            faults.append(fault + unmet[0].text)
        elif unmet:
            idle.append(key.name)
    if idle:
        head = cfg.MODEL.SEM_SEG_HEAD.NAME
        logger.warning(
            "These keys have no effect, because the head %s has no OCR: %s", head, ", ".join(idle)
        )
    if faults:
        raise UserError(
            "The config sets keys that have no effect:\n  "
            + "\n  ".join(faults)
            + "\nRemove them, set them to their defaults, or choose a model that uses them."
        )
