"""
Draw a study's results as figures that are readable without colours.

Each line has its own marker, and an entry in the legend or a separate panel.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_panoptic.workbench.comparing.intervals import Interval
from ocr_panoptic.workbench.comparing.study import Records

from .study_file import PlacedStudy
from .study_tables import Summaries

Points = Sequence[tuple[float, Interval]]  # receptive field in percent, gain
MARKERS = "os^DvPph<>X"  # distinguishable without colours, also hollow
OTHERS = "0.75"  # grey for other schemes' means


def placed_curves(study: PlacedStudy, records: Records) -> Figure:
    """
    Plot a study's first metric over the iterations, with a panel for each feature level.

    The study file lists the levels under ``at``. Each system has a line for the mean over its
    seeds, and a band from the lowest to the highest value. Baselines are black.
    """
    metric = study.metrics[0]
    trained = {record["system"] for record in records}
    shown = [system for name, system in study.systems.items() if name in trained]
    places = list(dict.fromkeys(system.place for system in shown))
    schemes = list(dict.fromkeys(system.scheme for system in shown))  # each keeps its colour
    black = {study.systems[system.baseline].scheme for system in shown}
    figure = Figure(figsize=(2 + max(8, 3 * len(places)), 5), layout="constrained")
    panels = figure.subplots(1, len(places), sharey=True, squeeze=False)[0]
    panels[0].set_ylabel(metric)
    curves: dict[tuple[str, str], list[dict]] = {}
    for record in records:
        system = study.systems[record["system"]]
        curve = dict(record["curves"][metric])
        curves.setdefault((system.place, system.scheme), []).append(curve)
    lines = {}
    for (place, scheme), runs in curves.items():
        axes = panels[places.index(place)]
        number = schemes.index(scheme)
        # Only iterations that all seeds have: a run may still be in progress.
        ticks = sorted(set.intersection(*map(set, runs)))
        values = np.array([[curve[tick] for tick in ticks] for curve in runs], float)
        color, width = ("black", 2) if scheme in black else (f"C{number % 10}", 1)
        style = {"color": color, "linewidth": width, "marker": MARKERS[number % len(MARKERS)]}
        (lines[scheme],) = axes.plot(ticks, values.mean(0), markersize=4, label=scheme, **style)
        axes.fill_between(ticks, values.min(0), values.max(0), color=color, alpha=0.08)
        axes.set(xlabel="iteration", title=place)
        axes.grid(alpha=0.3)
    figure.legend(handles=[lines[scheme] for scheme in schemes], loc="outside right upper")
    return figure


def gain_figure(
    study: PlacedStudy, rows: Summaries, fields: Mapping[str, Mapping[str, Any]]
) -> Figure:
    """
    Draw each scheme's gain in the first metric against the effective receptive field.

    The horizontal axis is the effective receptive field of the scheme's input features, in percent
    of the image. Each scheme has a panel with its mean gains and confidence intervals; the other
    schemes' means are grey. If one scheme gains more than twice as much as any other (for example,
    because it sees the ground truth), its panel comes last and has a separate scale.

    Args:
        fields: dict for each entry of ``at`` in the study file; its "effective_share" is the share
            of the image, 0..1, that the effective receptive field covers.
    """
    metric = study.metrics[0]
    shares = {place: 100 * field["effective_share"] for place, field in fields.items()}
    gains: dict[str, Points] = {}
    for row in rows:
        system, interval = study.systems[row.system], row.gains[metric]
        if interval is not None:  # a baseline has no gain
            gains.setdefault(system.scheme, []).append((shares[system.place], interval))
    gains = {scheme: sorted(points, key=lambda p: p[0]) for scheme, points in gains.items()}
    apart = _far_above(gains)
    usual = {scheme: points for scheme, points in gains.items() if scheme != apart}
    gains = usual | gains
    columns = min(4, len(gains))
    lines = math.ceil(len(gains) / columns)
    figure = Figure(figsize=(3.2 * columns, 2.8 * lines + 0.6), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, squeeze=False)
    for axes in panels.flat[len(gains) :]:
        axes.set_visible(False)
    for number, (axes, scheme) in enumerate(zip(panels.flat, gains)):
        for points in gains.values():
            axes.plot([x for x, _ in points], [i.mean for _, i in points], color=OTHERS, lw=1)
        axes.axhline(0, color="black", lw=0.8)
        _draw_gains(axes, gains[scheme], f"C{number % 10}", MARKERS[number % len(MARKERS)])
        axes.set_title(scheme, fontsize=11)
        axes.grid(alpha=0.3)
        _limit(axes, gains if scheme == apart else usual)
        axes.label_outer()
        if scheme == apart:
            axes.yaxis.tick_right()
            axes.tick_params(axis="y", labelright=True)
    places = sorted({s.place for s in study.systems.values()}, key=shares.__getitem__)
    note = f"; {apart} has a scale of its own" if apart else ""
    figure.supxlabel(
        f"effective receptive field (% of the image) of {', '.join(places)}\n"
        "bars: 95 % confidence interval; filled: it excludes 0; grey: the other schemes" + note,
        fontsize=10,
    )
    figure.supylabel(f"gain of {metric} over the baseline", fontsize=10)
    return figure


def _draw_gains(axes: Axes, points: Points, color: str, marker: str) -> None:
    xs, means = [x for x, _ in points], [interval.mean for _, interval in points]
    halves = [interval.half or 0 for _, interval in points]
    axes.errorbar(xs, means, halves, color=color, capsize=3, lw=2)
    faces = [color if interval.excludes_zero else "white" for _, interval in points]
    axes.scatter(
        xs, means, s=45, c=faces, edgecolors=color, linewidths=1.5, marker=marker, zorder=3
    )


def _far_above(gains: Mapping[str, Points]) -> str | None:
    """Return the name of the scheme that gains more than twice as much as any other, or None."""
    largest = {name: max(0, *(i.mean for _, i in points)) for name, points in gains.items()}
    first, *others = sorted(largest, key=largest.__getitem__, reverse=True)
    return first if others and largest[first] > 2 * largest[others[0]] else None


def _limit(axes: Axes, gains: Mapping[str, Points]) -> None:
    """Fit the vertical axis to the mean gains, so that wide intervals do not stretch it."""
    means = [interval.mean for points in gains.values() for _, interval in points]
    low, high = min(0, *means), max(0, *means)
    axes.set_ylim(low - (high - low) / 3, high + (high - low) / 3)
