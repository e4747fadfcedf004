"""Metrics of a study over its iterations. Readable without colours: each line has its marker."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .study import Study

MARKERS = "os^DvPph<>X"  # told apart without colours, hollow too


def study_curves(study: Study, records: Sequence[Mapping[str, Any]]) -> Figure:
    """
    Plot the first metric over the iterations, see :func:`draw_curves`.

    Args:
        records: of :func:`.study.read_runs`.
    """
    runs = {name: [r for r in records if r["system"] == name] for name in study.systems}
    runs = {name: own for name, own in runs.items() if own}
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_ylabel(study.metrics[0])
    baselines = {system.baseline for system in study.systems.values()}
    draw_curves(axes, runs, study.metrics[0], baselines)
    figure.legend(loc="outside right upper")  # ten systems leave no room inside
    return figure


def draw_curves(
    axes: Axes, runs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str, black: set[str]
) -> None:
    """
    Draw for each system the mean of its seeds, and a band from the lowest to the highest.

    Args:
        runs: system -> records; systems without any have their colour and no line.
        black: baselines, which are drawn in black.
    """
    axes.set_xlabel("iteration")
    axes.grid(alpha=0.3)
    for number, (name, records) in enumerate(runs.items()):
        if not records:
            continue
        curves = [dict(record["curves"][metric]) for record in records]
        # Iterations that all seeds have: one may still be under way.
        ticks = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = np.array([[curve[tick] for tick in ticks] for curve in curves], float)
        color = "black" if name in black else f"C{number % 10}"
        axes.plot(
            ticks,
            values.mean(axis=0),
            color=color,
            linewidth=2 if name in black else 1,
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            label=name,
        )
        axes.fill_between(ticks, values.min(axis=0), values.max(axis=0), color=color, alpha=0.08)
