"""Load the config of a run, and find the keys that its model does not read."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from detectron2.config import CfgNode, get_cfg

from ocr_panoptic.data.data_file import data_options
from ocr_panoptic.errors import UserError
from ocr_panoptic.modeling.context import schemes_reading

from .files import merge_file, merge_options
from .keys import KEYS, SCHEME, Key, add_ocr_config
from .rules import Condition, value_of, when

logger = logging.getLogger(__name__)


def load_config(
    config_file: str,
    opts: Sequence[str],
    data: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> CfgNode:
    """
    Load a config from a config file, data files, and the overrides of the command line.

    MODEL.TRUST_PICKLE has an effect only as an override, because a downloaded config must not
    allow downloaded weights to run code.

    Args:
        config_file: file, folder of a run, name of a packaged config, or "" for the defaults.
        opts: overrides as a flat list: KEY, VALUE, KEY, VALUE ...
        data: data files, which describe data sets (datasets/README.md).
        settings: config values from a checkpoint, by key; they replace the defaults.

    Returns:
        the config, which is not yet frozen and lacks the values that depend on the data and the
        machine. If the overrides set SOLVER.EPOCHS but not SOLVER.MAX_ITER, MAX_ITER is 0, so that
        it is later computed from EPOCHS.
    """
    cfg = _defaults()
    merge_file(cfg, config_file, settings)
    if cfg.MODEL.TRUST_PICKLE:
        logger.warning("MODEL.TRUST_PICKLE counts only on the command line or as an argument")
        cfg.MODEL.TRUST_PICKLE = False
    opts = [*data_options(data), *opts]
    merge_options(cfg, opts)
    if "SOLVER.EPOCHS" in opts[::2] and "SOLVER.MAX_ITER" not in opts[::2] and cfg.SOLVER.EPOCHS:
        cfg.SOLVER.MAX_ITER = 0  # otherwise EPOCHS would have no effect
    return cfg


def load_arguments(args: argparse.Namespace) -> CfgNode:
    """Load the config that a command's arguments specify."""
    data, settings = getattr(args, "data", None) or [], getattr(args, "settings", None)
    return load_config(args.config_file, args.opts or [], data, settings)


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


def defaults_of_unread(cfg: CfgNode) -> list[str]:
    """Return overrides, [KEY, VALUE, ...], that reset the keys that the model does not read."""
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
    Refuse keys that differ from their defaults although the chosen model does not read them.

    If a key is unread only because the model has Detectron2's own semantic head, warn instead.

    Args:
        cfg: config whose norms and device are not yet adapted to this machine.
    """
    default = _defaults()
    faults, idle = [], []
    for key in KEYS:
        value, usual = value_of(cfg, key.name), value_of(default, key.name)
        if value == usual:
            continue
        unmet = [condition for condition in conditions(key) if not condition.holds(cfg)]
        if any(condition.refuses for condition in unmet):
            fault = f"{key.name} is {value!r} (default {usual!r}); it is read only with "
            faults.append(fault + unmet[0].text)
        elif unmet:
            idle.append(key.name)
    if idle:
        head = cfg.MODEL.SEM_SEG_HEAD.NAME
        logger.warning("%s: set, but %s has no refined prediction", ", ".join(idle), head)
    if faults:
        raise UserError(
            "The config sets keys that nothing reads:\n  "
            + "\n  ".join(faults)
            + "\nLeave them out, set their defaults, or choose a model that reads them."
        )
