"""
The files of an evaluation, in ``inference/<data set>`` of the run's ``OUTPUT_DIR``.

metrics.json              values of the metrics, grouped by task, and facts about the run
config.yaml               config of the evaluation, including MODEL.WEIGHTS
per_class.csv             metrics of each class
<task>_per_image.csv      score of each image, and the points lost to each kind of error
region_quality.json       result of `ocr-panoptic regions`
...                       files of the evaluators: confusion matrix, predictions
"""

import csv
import io
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

from ocr_panoptic.errors import MissingFileError
from ocr_panoptic.formats.files import read_json, write_text
from ocr_panoptic.metrics import class_metrics, per_class_rows

logger = logging.getLogger(__name__)


def evaluation_folder(output_dir: str | os.PathLike, dataset_name: str) -> Path:
    """Return the folder that holds the files of a run's evaluation on a data set."""
    return Path(output_dir) / "inference" / dataset_name


class StoredEvaluation(NamedTuple):
    """The content of an evaluation's ``metrics.json``; undefined metrics are None."""

    results: dict[str, dict[str, float | None]]  # task -> metric -> value
    run: dict[str, Any]  # facts about the run (seed, versions, ...)


def write_evaluation(
    results: Mapping[str, Mapping[str, float]], folder: Path, run_info: Mapping[str, Any]
) -> None:
    """
    Write ``metrics.json`` and ``per_class.csv``, and log the metrics of each class as a table.

    Args:
        results: for each task, the metrics' values, keyed by Detectron2's metric names.
        folder: folder of the evaluation, created if it does not exist.
        run_info: facts about the run (weights, seed, versions ...), JSON-serialisable.
    """
    write_results(folder / "metrics.json", {"run": run_info, **results})
    rows = per_class_rows(results)
    columns = ["class", "isthing", *(metric.column for metric in class_metrics())]
    write_table(rows, folder / "per_class.csv", columns)
    if rows:
        used = [key for key in columns if any(row[key] is not None for row in rows)]
        table = tabulate([[row[key] for key in used] for row in rows], used, floatfmt=".2f")
        logger.debug("Results per class (in percent, or numbers of segments):\n%s", table)
    logger.info("Metrics are in %s", folder / "metrics.json")


def read_evaluation(folder: Path) -> StoredEvaluation:
    """Read an evaluation that :func:`write_evaluation` wrote."""
    path = folder / "metrics.json"
    if not path.is_file():
        raise MissingFileError(
            f"{path}: not found. Evaluate the model first: ocr-panoptic evaluate --config-file "
            f"CONFIG --weights WEIGHTS OUTPUT_DIR {folder.parent.parent}"
        )
    tasks = read_json(path)
    return StoredEvaluation(tasks, tasks.pop("run"))


def image_scores_file(folder: Path, task: str) -> Path:
    """Return the path of the CSV of image scores, for the task "panoptic_seg" or "sem_seg"."""
    return folder / f"{task}_per_image.csv"


def write_table(
    rows: Sequence[Mapping[str, Any]], path: Path, columns: Sequence[str] | None = None
) -> None:
    """
    Write a CSV file atomically; None, NaN and infinity become empty cells.

    Args:
        rows: for each row, a mapping from column name to value.
        columns: names of the columns in order; the keys of the first row by default.
    """
    table = io.StringIO()
    writer = csv.DictWriter(table, columns or list(rows[0] if rows else ()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: None if _is_undefined(value) else value for key, value in row.items()} for row in rows
    )
    write_text(path, table.getvalue())


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, without empty cells; return [] if the file does not exist."""
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return [{key: text for key, text in row.items() if text} for row in csv.DictReader(file)]


def write_results(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` as JSON; NumPy scalars become numbers, NaN and infinity become null."""
    write_text(path, json.dumps(_serialisable(content), indent=2, allow_nan=False) + "\n")


def _serialisable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _serialisable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_serialisable(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if _is_undefined(value) else value


def _is_undefined(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
