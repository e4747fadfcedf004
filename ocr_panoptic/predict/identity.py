"""Compare a config and its data with the training that made the weights."""

import itertools
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog

from ocr_panoptic.checkpoint.start import Start
from ocr_panoptic.config.files import CLASS_KEYS, EXACT, values_by_key
from ocr_panoptic.config.keys import KEYS, THEIRS, is_fixed
from ocr_panoptic.config.unread import unread_keys
from ocr_panoptic.data.catalog import register
from ocr_panoptic.errors import UserError

logger = logging.getLogger(__name__)

NAMES = ("thing_classes", "stuff_classes")
# Keys of Detectron2's metadata that describe classes, not files.
CLASSES = (
    "evaluator_type",
    "thing_classes",
    "thing_colors",
    "thing_dataset_id_to_contiguous_id",
    "stuff_classes",
    "stuff_colors",
    "stuff_dataset_id_to_contiguous_id",
    "label_map",
    "ignore_label",
    "flip_pairs",
    "class_categories",
    "channels",
)
SAME_NORM = ("BN", "SyncBN", "naiveSyncBN", "nnSyncBN", "FrozenBN")


def identity_of_run(cfg: CfgNode, metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """
    Return the settings and classes of a training run, to save in its checkpoints.

    ``metadata`` describes the classes; by default, DATASETS.TRAIN has them.
    """
    if metadata is None:
        names = cfg.DATASETS.TRAIN
        metadata = MetadataCatalog.get(names[0]).as_dict() if names else {}
    classes = {key: _plain(metadata[key]) for key in CLASSES if key in metadata}
    return {"settings": cfg.dump(), "classes": classes if "stuff_classes" in classes else None}


def check_settings_of(start: Start, cfg: CfgNode, *, strict: bool = True) -> None:
    """
    Refuse a completed config if settings that affect the output differ from the checkpoint's.

    Without ``strict``, only warn.
    """
    if start.settings is None:
        return
    now, unread = values_by_key(yaml.safe_load(cfg.dump())), unread_keys(cfg)
    # Keys that an older version's checkpoint does not have count as their defaults.
    before = {key.name: key.default for key in KEYS if key.default is not THEIRS}
    before |= start.settings
    faults = [
        f"{key} is {now[key]}, but was {value}"
        for key, value in before.items()
        if key in now and key not in unread and _differs(key, value, now[key])
        if strict or not key.endswith(".NUM_CLASSES")  # a training may have other classes
    ]
    if faults:
        _report(
            f"The weights {start.weights} were trained with other settings:\n  "
            + "\n  ".join(faults),
            "Set these keys to their former values, or name the weights without a config.",
            strict,
        )


def _differs(key: str, before: Any, now: Any) -> bool:
    if not is_fixed(key):
        return False
    if key.endswith(".NUM_CLASSES") and 0 in (before, now):  # taken from the data
        return False
    if key in CLASS_KEYS and EXACT.get(before, before) == EXACT.get(now, now):
        return False
    if key.endswith("NORM") and before in SAME_NORM and now in SAME_NORM:
        return False
    return (list(before) if isinstance(before, tuple) else before) != now


def _report(message: str, fix: str, strict: bool) -> None:
    if strict:
        raise UserError(f"{message}\n{fix}")
    logger.warning("%s", message)


def check_classes_of(start: Start, names: Iterable[str], *, strict: bool = True) -> None:
    """
    Refuse data sets whose classes differ from the classes of the weights.

    Args:
        names: names of the data sets.
        strict: whether to refuse; otherwise only warn.
    """
    if start.classes is None:
        return
    theirs = [start.classes.get(key, []) for key in NAMES]
    for name in names:
        ours = [list(MetadataCatalog.get(name).get(key, [])) for key in NAMES]
        if ours == theirs:
            continue
        known, own = (list(itertools.chain(*kinds)) for kinds in (theirs, ours))
        new, gone = ([n for n in a if n not in b] for a, b in ((own, known), (known, own)))
        change = f"new: {', '.join(new) or 'none'}; missing: {', '.join(gone) or 'none'}"
        _report(
            f"The classes of the data set {name} and of the weights {start.weights} differ "
            f"({change if new or gone else 'only in their order'}):\n"
            f"  weights  {', '.join(known)}\n  data     {', '.join(own)}",
            "Name a data set with the classes of the weights.",
            strict,
        )


def register_classes(start: Start) -> str:
    """Register a checkpoint's classes as a data set without images; return the data set's name."""
    name = f"classes of {start.weights}"

    register(name, Path(start.weights), partial(_no_records, name), dict(start.classes or {}))
    return name


def _no_records(name: str) -> list[dict]:
    raise UserError(f"The {name} are known, but not the images: give a data set with --data FILE.")


def _plain(value: Any) -> Any:
    """Convert a metadata value to types that ``torch.load(..., weights_only=True)`` accepts."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
