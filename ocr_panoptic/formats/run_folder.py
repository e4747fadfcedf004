"""
Write and read the files of a training run in its ``OUTPUT_DIR``.

config.yaml   config of the run; config.1.yaml ... are the configs of earlier runs
classes.json  classes of the training data, as stored in each checkpoint
metrics.json  Detectron2's training log, in JSON lines; metrics.1.json ... are of earlier runs
inference/    evaluations, which :mod:`ocr_panoptic.evaluation.stored` writes
"""

import itertools
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import write_text

logger = logging.getLogger(__name__)

CONFIG = "config.yaml"
CLASSES = "classes.json"
LOG = "metrics.json"


def set_former_aside(output_dir: str | os.PathLike) -> None:
    """Move a former run's config and log to ``config.<n>.yaml`` and ``metrics.<n>.json``."""
    files = [path for name in (CONFIG, LOG) if (path := Path(output_dir) / name).is_file()]
    for number in itertools.count(1):
        copies = [path.with_name(f"{path.stem}.{number}{path.suffix}") for path in files]
        if not any(path.exists() for path in copies):
            break
    for path, copy in zip(files, copies, strict=True):
        shutil.copyfile(path, copy)
        os.truncate(path, 0)  # Detectron2's writer has opened the log, so it cannot be renamed
        logger.warning("%s is from an earlier run; moved its content to %s", path, copy.name)


def write_config(output_dir: str | os.PathLike, text: str) -> None:
    """Write the config of a training run, in YAML."""
    write_text(Path(output_dir) / CONFIG, text)


def write_classes(output_dir: str | os.PathLike, classes: Mapping[str, Any] | None) -> None:
    """Write a run's classes to ``classes.json``, for other programs to read."""
    write_text(Path(output_dir) / CLASSES, json.dumps(classes or {}, indent=2) + "\n")


def read_training_log(output_dir: str | os.PathLike) -> list[dict[str, float]]:
    """
    Return the rows of Detectron2's training log, one dict per iteration; [] without a log.

    All runs in the folder append to one log. If a later run starts at an iteration that the log
    already has, the later rows replace the earlier rows from this iteration on. The result is
    sorted by iteration. Damaged lines, for example from a killed process, are skipped.
    """
    path = Path(output_dir) / LOG
    rows: dict[int, dict[str, float]] = {}
    last = -1  # last iteration with losses; other lines may be out of order
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
