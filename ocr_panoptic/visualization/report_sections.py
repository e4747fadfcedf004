"""The parts of the report that come from a run's files: headline metrics, classes, losses."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from detectron2.data import Metadata

from ocr_panoptic.metrics import Metric, Results, class_metrics, headline_metrics

from .charts import LineChart, Series
from .figures import css_color


class Card(NamedTuple):
    label: str
    meaning: str
    value: float | None  # percent
    interval: tuple[float, float] | None = None  # of 95% over the images


class Cell(NamedTuple):
    text: str  # "" where undefined
    percent: float | None = None  # length of the bar behind the text


class ClassRow(NamedTuple):
    name: str
    kind: str  # "thing", "stuff", or "" for a class of the semantic head alone
    color: str  # CSS, "" where the metadata has none
    cells: list[Cell]


# chart -> (key of the training log, label)
CHARTS = {
    "Total loss": (("total_loss", "total"),),
    "Semantic segmentation": (("loss_sem_seg", "refined"), ("loss_sem_seg_coarse", "coarse")),
    "Instances": (
        ("loss_cls", "box class"),
        ("loss_box_reg", "box regression"),
        ("loss_mask", "mask"),
        ("loss_rpn_cls", "RPN class"),
        ("loss_rpn_loc", "RPN regression"),
    ),
}


def metric_cards(tasks: Results) -> dict[str, list[Card]]:
    """The headline metrics by group; tasks that were not evaluated are left out."""
    return {
        group: [
            Card(
                metric.label,
                metric.meaning + (", mean over the classes" if metric.column else ""),
                tasks[metric.task].get(metric.name),
                _interval(tasks[metric.task], metric.name),
            )
            for metric in metrics
        ]
        for group, metrics in headline_metrics(tasks).items()
    }


def _interval(values: Mapping[str, float | None], name: str) -> tuple[float, float] | None:
    low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
    return None if low is None or high is None else (low, high)


def loss_charts(log: Sequence[Mapping[str, float]]) -> list[LineChart]:
    """
    Args:
        log: of :func:`ocr_panoptic.formats.run_folder.read_training_log`.

    Returns:
        the charts with at least one curve, over the number of iterations done. Values that a
        logarithmic axis cannot show are left out (NaN, infinity, and zero: a batch without any
        instance); a loss that is the semantic head's only one is not called "refined".
    """
    charts = []
    for title, curves in CHARTS.items():
        series = [Series(label, _positive(log, key)) for key, label in curves]
        series = [s for s in series if s.points]
        if title == "Semantic segmentation" and len(series) == 1:
            series = [Series("semantic", series[0].points)]
        if series:
            charts.append(LineChart(title, series, x_label="iterations"))
    return charts


def _positive(log: Sequence[Mapping[str, float]], key: str) -> list[tuple[float, float]]:
    return [
        (row["iteration"] + 1, row[key]) for row in log if 0 < row.get(key, math.nan) < math.inf
    ]


def class_table(
    per_class: Sequence[Mapping[str, Any]], metadata: Metadata
) -> tuple[list[Metric], list[ClassRow]]:
    """
    Args:
        per_class: of :func:`ocr_panoptic.metrics.per_class_rows`.
        metadata: with the classes' names and colours.

    Returns:
        the metrics that have a value for a class; things, then stuff, then what is neither.
        Classes without any value, which neither occur nor are predicted, are left out.
    """
    kinds = {1: "thing", 0: "stuff", None: ""}
    colors = dict(zip(metadata.stuff_classes, metadata.stuff_colors, strict=True))
    things = metadata.get("thing_classes", ()), metadata.get("thing_colors", ())
    colors.update(zip(*things, strict=True))
    columns = [m for m in class_metrics() if any(row[m.column] is not None for row in per_class)]
    rows = [
        ClassRow(
            name=row["class"],
            kind=kinds[row["isthing"]],
            color=css_color(colors[row["class"]]) if row["class"] in colors else "",
            cells=[_cell(metric, row[metric.column], metric is columns[0]) for metric in columns],
        )
        for row in sorted(per_class, key=lambda row: list(kinds).index(row["isthing"]))
    ]
    rows = [row for row in rows if any(cell.text not in ("", "0") for cell in row.cells)]
    return columns, rows


def _cell(metric: Metric, value: float | None, with_bar: bool) -> Cell:
    if value is None:
        return Cell("")
    if metric.is_count:
        return Cell(f"{value:.0f}")
    return Cell(f"{value:.1f}", percent=value if with_bar else None)
