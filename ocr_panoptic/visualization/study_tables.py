"""A study's results as a table and as curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tabulate import tabulate


def study_table(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> str:
    """
    Args:
        rows: of :func:`ocr_panoptic.analysis.study.summarise`.
        metrics: its metrics, in the order of the columns.

    Returns:
        a Markdown table: mean ± standard deviation over the seeds
    """
    table = []
    for row in rows:
        cells = {"system": row["system"], "runs": row["runs"]}
        for number, metric in enumerate(metrics):
            cells[metric] = _plus_minus(row[metric], "")
            if number == 0:
                difference = _plus_minus(row[f"{metric} - baseline"], "+")
                cells["difference to the baseline"] = difference
        for column, key, factor, digits in (
            ("parameters (M)", "parameters", 1e-6, 2),
            ("s per iteration", "seconds_per_iteration", 1, 2),
            ("peak memory (MiB)", "peak_memory_bytes", 2**-20, 0),
        ):
            cells[column] = "" if row[key] is None else f"{row[key] * factor:.{digits}f}"
        table.append(cells)
    return tabulate(table, headers="keys", tablefmt="github", disable_numparse=True)


def _plus_minus(value: tuple[float | None, float | None], sign: str) -> str:
    mean, deviation = value
    if mean is None:
        return ""
    return f"{mean:{sign}.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def study_curves(records: Sequence[Mapping[str, Any]], metric: str) -> Figure:
    """
    The metric over the iterations: for each system the mean of its seeds, and a band from the
    lowest to the highest.

    Args:
        records: of :func:`ocr_panoptic.analysis.study.read_records`.
    """
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.add_subplot(xlabel="iteration", ylabel=metric)
    for name in dict.fromkeys(record["system"] for record in records):
        curves = [dict(r["curves"][metric]) for r in records if r["system"] == name]
        # Iterations that all seeds have: one may still be under way.
        places = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = np.array([[curve[place] for place in places] for curve in curves], float)
        (line,) = axes.plot(places, values.mean(axis=0), marker=".", label=name)
        axes.fill_between(
            places, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.08
        )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")  # ten systems leave no room inside
    return figure
