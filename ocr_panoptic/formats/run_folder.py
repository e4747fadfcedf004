"""
The files of a training run, in its ``OUTPUT_DIR``.

config.yaml   config of the run; config.1.yaml ... are the configs of earlier runs
classes.json  classes of the training data, as in each checkpoint
metrics.json  Detectron2's log of the training, JSON lines
inference/    evaluations, see :mod:`ocr_panoptic.evaluation.stored`
"""

import itertools
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import write_text

logger = logging.getLogger(__name__)

CONFIG = "config.yaml"
CLASSES = "classes.json"


def write_config(output_dir: str | os.PathLike, text: str, *, keep_former: bool) -> None:
    """
    Write the config of a training run.

    Args:
        text: YAML.
        keep_former: whether to keep another run's config as the next free ``config.<n>.yaml``.
    """
    path = Path(output_dir) / CONFIG
    if keep_former and path.is_file() and path.read_bytes() != text.encode():
        names = (path.with_name(f"config.{number}.yaml") for number in itertools.count(1))
        former = next(name for name in names if not name.exists())
        path.rename(former)
        logger.warning("%s belongs to an earlier run: it is now %s", path, former.name)
    write_text(path, text)


def write_classes(output_dir: str | os.PathLike, classes: Mapping[str, Any] | None) -> None:
    """Write a run's classes for other programs; this package reads them from checkpoints."""
    write_text(Path(output_dir) / CLASSES, json.dumps(classes or {}, indent=2) + "\n")


def read_training_log(output_dir: str | os.PathLike) -> list[dict[str, float]]:
    """
    Return Detectron2's log, a dict for each iteration; empty for a run that only evaluates.

    Every run in the folder appends to it. If a resumed or second run steps back, its lines replace
    the earlier lines from this iteration on. An evaluation's lines come after lines of later
    iterations. Damaged lines, which a kill leaves, are left out.
    """
    path = Path(output_dir) / "metrics.json"
    rows: dict[int, dict[str, float]] = {}
    last = -1  # iteration with losses; other lines need not be in order
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
            iteration = row["iteration"]
        except (ValueError, LookupError, TypeError):
            continue
        if "total_loss" in row:
            if iteration <= last:
                rows = {known: rows[known] for known in rows if known <= iteration}
            last = iteration
        rows[iteration] = {**rows.get(iteration, {}), **row}
    return [rows[iteration] for iteration in sorted(rows)]
