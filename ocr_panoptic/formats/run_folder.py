"""The files of a run, below its ``OUTPUT_DIR``.

config.yaml                              of the training; config.1.yaml ... of ones before it
metrics.json                             Detectron2's log of the training, JSON lines
inference/<data set>/metrics.json        an evaluation: task -> metric -> value, and "run"
inference/<data set>/config.yaml         of the evaluation, with the weights that it is of
inference/<data set>/per_class.csv       the same for each class
inference/<data set>/<task>_per_image.csv  score of each image and the kinds of its errors
inference/<data set>/region_quality.json of `ocr-panoptic regions`
inference/<data set>/...                 predictions and confusion matrix, of the evaluators
"""

import csv
import io
import itertools
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.metrics import class_metrics, per_class_rows

from .files import read_json, write_text

logger = logging.getLogger(__name__)

CONFIG = "config.yaml"
_MAX_BYTES = 2**26  # of an evaluation's metrics.json; thousands of classes have a hundredth


def evaluation_folder(output_dir: str | os.PathLike, dataset_name: str) -> Path:
    """Return where the evaluation on a data set has its files."""
    return Path(output_dir) / "inference" / dataset_name


@dataclass(frozen=True)
class StoredEvaluation:
    """
    Attributes:
        results: task -> metric -> value by Detectron2's names, None where it is undefined.
        run: what the run says about itself (seed, versions, ...).
    """

    results: dict[str, dict[str, float | None]]
    run: dict[str, Any]


def write_evaluation(
    results: Mapping[str, Mapping[str, float]], folder: Path, run_info: Mapping[str, Any]
) -> None:
    """Write ``metrics.json`` and ``per_class.csv``, and log the metrics of the classes as a table.

    Args:
        results: task -> metric -> value by Detectron2's names, as the evaluators return it.
        folder: made if it does not exist.
        run_info: what the run was (weights, seed, versions ...), JSON-serialisable.
    """
    _write_json(folder / "metrics.json", {"run": run_info, **results})
    rows = per_class_rows(results)
    columns = ["class", "isthing", *(metric.column for metric in class_metrics())]
    write_table(rows, folder / "per_class.csv", columns)
    if rows:
        logger.debug("Per class (percent, numbers of segments):\n%s", _table(rows))
    logger.info("Metrics are in %s", folder / "metrics.json")


def read_evaluation(folder: Path) -> StoredEvaluation:
    """Return what :func:`write_evaluation` wrote.

    Raises:
        FileNotFoundError: there is no evaluation; the message names the command that makes it.
        ValueError: the file is damaged.
    """
    path = folder / "metrics.json"
    if not path.is_file():
        raise MissingFileError(
            f"{path}: not there; evaluate the model first: "
            "ocr-panoptic evaluate --config-file CONFIG --weights WEIGHTS "
            f"OUTPUT_DIR {folder.parent.parent}"
        )
    tasks = read_json(path, _MAX_BYTES)
    run = tasks.pop("run", {}) if isinstance(tasks, dict) else None
    if not isinstance(run, dict) or not all(isinstance(task, dict) for task in tasks.values()):
        raise UserError(f"{path}: is not what an evaluation has written. Evaluate again.")
    return StoredEvaluation(tasks, run)


def image_scores_file(folder: Path, task: str) -> Path:
    """Return the table of an evaluation's images, for "panoptic_seg" or "sem_seg"."""
    return folder / f"{task}_per_image.csv"


def write_table(
    rows: Sequence[Mapping[str, Any]], path: Path, columns: Sequence[str] | None = None
) -> None:
    """Write a CSV file, whole or not at all; None and NaN become empty.

    Args:
        rows: column -> value.
        columns: in their order; those of the first row by default.
    """
    table = io.StringIO()
    writer = csv.DictWriter(table, columns or list(rows[0] if rows else ()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: None if _is_undefined(value) else value for key, value in row.items()} for row in rows
    )
    write_text(path, table.getvalue())


def read_table(path: Path) -> list[dict[str, str]]:
    """Return what :func:`write_table` wrote, by row; [] where there is no such file. Empty values
    are left out.

    Raises:
        ValueError: the file is damaged.
    """
    if not path.is_file():
        return []
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: is no CSV file ({error}). Evaluate again.") from error
    if any(None in row or None in row.values() for row in rows):
        raise UserError(f"{path}: has rows of other lengths than its header. Evaluate again.")
    return [{key: text for key, text in row.items() if text} for row in rows]


def write_region_quality(
    classes: Mapping[str, Mapping[str, float]], folder: Path, run_info: Mapping[str, Any]
) -> Path:
    """Write ``region_quality.json``; returns its path.

    Args:
        classes: of :meth:`.RegionQuality.results`.
        folder, run_info: as those of :func:`write_evaluation`.
    """
    path = folder / "region_quality.json"
    _write_json(path, {"run": run_info, "classes": classes})
    return path


def write_config(output_dir: str | os.PathLike, text: str, *, keep_former: bool) -> None:
    """
    Write the config of a training.

    Args:
        text: YAML.
        keep_former: the config that is there is of another training, and stays as the next free
            ``config.<number>.yaml``.
    """
    path = Path(output_dir) / CONFIG
    if keep_former and path.is_file() and path.read_text(encoding="utf-8") != text:
        free = (path.with_name(f"config.{number}.yaml") for number in itertools.count(1))
        former = next(other for other in free if not other.exists())
        path.rename(former)
        logger.warning("%s is of a training before this one: it is now %s", path, former.name)
    write_text(path, text)


def drop_unfinished_line(output_dir: str | os.PathLike) -> None:
    """Drop the last line of the training log where a run was killed while it wrote: the next line
    would join it."""
    path = Path(output_dir) / "metrics.json"
    content = path.read_bytes() if path.is_file() else b""
    if content and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def read_training_log(output_dir: str | os.PathLike) -> list[dict[str, float]]:
    """
    Read Detectron2's log. It is appended to by every run in the same folder; where the training
    steps back (a resumed or a second run), the later lines replace the earlier ones from there on.
    The lines of an evaluation come after those of later iterations.

    Returns:
        a dict for each iteration, which rises; empty where there is no log (a run that only
        evaluates).

    Raises:
        ValueError: a line is not such a record; the message names file and line.
    """
    path = Path(output_dir) / "metrics.json"
    if not path.is_file():
        return []
    rows: dict[int, dict[str, float]] = {}
    last = -1  # iteration with losses; other lines need not be in order
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            iteration = row["iteration"]
            if not isinstance(iteration, int):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(
                f"{path}, line {number}: expected a JSON object with an 'iteration', "
                f"found {line[:60].decode(errors='backslashreplace')!r}; remove that line"
            ) from error
        if "total_loss" in row:
            if iteration <= last:
                rows = {known: rows[known] for known in rows if known <= iteration}
            last = iteration
        rows[iteration] = {**rows.get(iteration, {}), **row}
    return [rows[iteration] for iteration in sorted(rows)]


def _table(rows: list[dict[str, Any]]) -> str:
    columns = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    kinds = {0: "stuff", 1: "thing", None: None}
    rows = [{**row, "isthing": kinds[row["isthing"]]} for row in rows]
    headers = ["kind" if c == "isthing" else c for c in columns]
    return tabulate([[row[c] for c in columns] for row in rows], headers, floatfmt=".2f")


def _is_undefined(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """NumPy's numbers become Python's; NaN and infinity, which JSON lacks, become null."""
    text = json.dumps(_serialisable(content), indent=2, allow_nan=False)
    write_text(path, text + "\n")


def _serialisable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _serialisable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_serialisable(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if _is_undefined(value) else value
