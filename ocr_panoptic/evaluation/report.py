"""Evaluation results on disk and on the console: metrics.json, per_class.csv, a table."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tabulate import tabulate

logger = logging.getLogger(__name__)

# Column of the table -> task and prefix of the metric ("<prefix>-<class>").
COLUMNS = {
    "PQ": ("panoptic_seg", "PQ"),
    "SQ": ("panoptic_seg", "SQ"),
    "RQ": ("panoptic_seg", "RQ"),
    "TP": ("panoptic_seg", "TP"),
    "FP": ("panoptic_seg", "FP"),
    "FN": ("panoptic_seg", "FN"),
    "IoU": ("sem_seg", "IoU"),
    "ACC": ("sem_seg", "ACC"),
    "AP_box": ("bbox", "AP"),
    "AP_mask": ("segm", "AP"),
}


def write_results(
    results: Mapping[str, Mapping[str, float]], output_dir: str | os.PathLike, run_info: Mapping
) -> None:
    """Write `metrics.json` and `per_class.csv`, and log the metrics of the classes as a table.

    Args:
        results: task -> metric -> value, as the evaluators return it.
        output_dir: made if it does not exist.
        run_info: what the run was (data set, weights, seed, versions ...), JSON-serialisable;
            key "run" of `metrics.json`. NaN and infinity become null there.
    """
    output_dir = Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    metrics = {"run": run_info, **results}
    text = json.dumps(_serialisable(metrics), indent=2, allow_nan=False)
    _write_atomically(output_dir / "metrics.json", text + "\n")

    rows = per_class_rows(results)
    table = io.StringIO()
    writer = csv.DictWriter(table, ["class", "isthing", *COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _write_atomically(output_dir / "per_class.csv", table.getvalue())
    if rows:
        logger.info("Per class (percent, numbers of segments):\n%s", _table(rows))
    logger.info("Metrics are in %s", output_dir / "metrics.json")


def per_class_rows(results: Mapping[str, Mapping[str, float]]) -> list[dict]:
    """One row per class, in the order of the tasks: "class", "isthing" (0, 1 or None) and
    the keys of COLUMNS, percent or counts; None where there is no such value.

    Metrics of different tasks meet in one row where their classes bear the same name.
    """
    names: dict[str, None] = {}  # an ordered set
    for task, prefix in COLUMNS.values():
        for metric in results.get(task, {}):
            if metric.startswith(prefix + "-"):
                names.setdefault(metric[len(prefix) + 1 :])
    rows = [
        {
            "class": name,
            "isthing": results.get("panoptic_seg", {}).get(f"isthing-{name}"),
            **{
                column: _finite(results.get(task, {}).get(f"{prefix}-{name}"))
                for column, (task, prefix) in COLUMNS.items()
            },
        }
        for name in names
    ]
    things = [row for row in rows if row["isthing"] == 1]
    if len(things) == 1:  # Detectron2 leaves out "AP-<class>" then, as it equals "AP"
        for column in ("AP_box", "AP_mask"):
            metrics = results.get(COLUMNS[column][0], {})
            things[0][column] = _finite(metrics.get(f"AP-{things[0]['class']}", metrics.get("AP")))
    return rows


def _table(rows: list[dict]) -> str:
    columns = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    kinds = {0: "stuff", 1: "thing", None: None}
    return tabulate(
        [[kinds[row[c]] if c == "isthing" else row[c] for c in columns] for row in rows],
        headers=["kind" if c == "isthing" else c for c in columns],
        floatfmt=".2f",
    )


def _serialisable(value):
    if isinstance(value, Mapping):
        return {str(key): _serialisable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_serialisable(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return _finite(value)


def _finite(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
