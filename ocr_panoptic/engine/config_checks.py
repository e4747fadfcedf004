"""Checks of a config by the table in config.py, before anything is read or built."""

import logging

from detectron2.config import CfgNode, get_cfg

from ocr_panoptic.config import KEYS, SCHEME, Key, add_ocr_config
from ocr_panoptic.config_rules import Condition, value_of, when
from ocr_panoptic.errors import UserError
from ocr_panoptic.modeling.context import schemes_reading

logger = logging.getLogger(__name__)


def conditions(key: Key) -> list[Condition]:
    """Return the conditions for a key to be read; SCHEME is replaced by the schemes' names."""
    return [
        when("MODEL.CONTEXT.NAME", *schemes_reading(key.name)) if condition is SCHEME else condition
        for condition in key.read_by
    ]


def unread_keys(cfg: CfgNode) -> set[str]:
    """Return the names of the keys that the chosen model does not read."""
    return {key.name for key in KEYS if not all(c.holds(cfg) for c in conditions(key))}


def defaults_of_unread(cfg: CfgNode) -> list[str]:
    """
    Return the KEY VALUE overrides that reset each key that the chosen model does not read.

    :func:`check_unread_keys` refuses other values of these keys.
    """
    default = _defaults()
    names = sorted(unread_keys(cfg))
    names = [name for name in names if value_of(cfg, name) != value_of(default, name)]
    return [word for name in names for word in (name, str(value_of(default, name)))]


def _defaults() -> CfgNode:
    default = get_cfg()
    add_ocr_config(default)
    return default


def check_unread_keys(cfg: CfgNode) -> None:
    """
    Refuse keys that differ from their default although the chosen model does not read them.

    Keys without effect on a plain baseline only give a warning.

    Args:
        cfg: config before norms and device of this machine are set.
    """
    default = _defaults()
    faults, idle = [], []
    for key in KEYS:
        value, usual = value_of(cfg, key.name), value_of(default, key.name)
        if [*value] == [*usual] if isinstance(usual, list | tuple) else value == usual:
            continue
        unmet = [condition for condition in conditions(key) if not condition.holds(cfg)]
        if any(condition.refuses for condition in unmet):
            faults.append(
                f"{key.name} is {value!r} (default {usual!r}); it is read only with {unmet[0].text}"
            )
        elif unmet:
            idle.append(key.name)
    if idle:
        logger.warning(
            "%s: set, but %s has no refined prediction",
            ", ".join(idle),
            cfg.MODEL.SEM_SEG_HEAD.NAME,
        )
    if faults:
        raise UserError(
            "The config sets keys that nothing reads:\n  "
            + "\n  ".join(faults)
            + "\nLeave them out, set their defaults, or choose a model that reads them."
        )
