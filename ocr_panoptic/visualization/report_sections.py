"""The parts of the report that come from a run's files: headline metrics, classes, losses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from detectron2.data import Metadata

from ocr_panoptic.visualization.charts import LineChart, Series
from ocr_panoptic.visualization.figures import css_color

Metrics = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class Card:
    label: str
    meaning: str
    value: float | None  # percent


@dataclass(frozen=True)
class Cell:
    text: str  # "" where undefined
    percent: float | None = None  # length of the bar behind the text


@dataclass(frozen=True)
class ClassRow:
    name: str
    kind: str  # "thing", "stuff", or "" for a class of the semantic head alone
    color: str  # CSS, "" where the metadata has none
    cells: list[Cell]


_AP = "average precision, mean over the IoU thresholds 0.5 to 0.95"
# group -> (task, metric, label, meaning)
CARDS = {
    "Panoptic segmentation": (
        ("panoptic_seg", "PQ", "PQ", "panoptic quality, mean over the classes"),
        ("panoptic_seg", "PQ_th", "PQ things", "panoptic quality of the countable classes"),
        ("panoptic_seg", "PQ_st", "PQ stuff", "panoptic quality of the uncountable classes"),
        ("panoptic_seg", "SQ", "SQ", "segmentation quality: mean IoU of the matched segments"),
        ("panoptic_seg", "RQ", "RQ", "recognition quality: F1 score of the matching"),
    ),
    "Semantic segmentation": (
        ("sem_seg", "mIoU", "mIoU", "intersection over union, mean over the classes in the truth"),
        (
            "sem_seg",
            "mIoU_truth_or_predicted",
            "mIoU, predicted too",
            "intersection over union, mean over the classes in the truth or the prediction",
        ),
        ("sem_seg", "fwIoU", "fwIoU", "intersection over union, weighted by class frequency"),
        ("sem_seg", "pACC", "pACC", "share of the pixels that are right"),
    ),
    "Instances": (
        ("bbox", "AP", "Box AP", f"{_AP} of boxes"),
        ("segm", "AP", "Mask AP", f"{_AP} of masks"),
    ),
}

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

# column of per_class.csv -> heading; all are percentages but the counts
CLASS_COLUMNS = {
    "PQ": "PQ",
    "SQ": "SQ",
    "RQ": "RQ",
    "TP": "TP",
    "FP": "FP",
    "FN": "FN",
    "IoU": "IoU",
    "ACC": "Accuracy",
    "AP_box": "Box AP",
    "AP_mask": "Mask AP",
}
COUNTS = ("TP", "FP", "FN")


def metric_cards(tasks: Metrics) -> dict[str, list[Card]]:
    """The headline metrics by group; tasks that were not evaluated are left out."""
    groups = {
        title: [
            Card(label, meaning, tasks[task].get(metric))
            for task, metric, label, meaning in cards
            if task in tasks
        ]
        for title, cards in CARDS.items()
    }
    return {title: cards for title, cards in groups.items() if cards}


def loss_charts(log: Sequence[Mapping[str, float]]) -> list[LineChart]:
    """
    Args:
        log: of :func:`run_records.read_training_log`.

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
    per_class: Sequence[Mapping[str, str]], metadata: Metadata
) -> tuple[list[str], list[ClassRow]]:
    """
    Args:
        per_class: the rows of per_class.csv.
        metadata: with the classes' names and colours.

    Returns:
        the headings of the columns with a value; things, then stuff, then what is neither. Classes
        without any value, which neither occur nor are predicted, are left out.
    """
    kinds = {"1": "thing", "0": "stuff", "": ""}
    colors = dict(zip(metadata.stuff_classes, metadata.stuff_colors, strict=True))
    things = metadata.get("thing_classes", ()), metadata.get("thing_colors", ())
    colors.update(zip(*things, strict=True))
    columns = [column for column in CLASS_COLUMNS if any(row[column] for row in per_class)]
    rows = [
        ClassRow(
            name=row["class"],
            kind=kinds[row["isthing"]],
            color=css_color(colors[row["class"]]) if row["class"] in colors else "",
            cells=[_cell(column, row[column], columns[0]) for column in columns],
        )
        for row in sorted(per_class, key=lambda row: list(kinds).index(row["isthing"]))
    ]
    rows = [row for row in rows if any(cell.text not in ("", "0") for cell in row.cells)]
    return [CLASS_COLUMNS[column] for column in columns], rows


def _cell(column: str, text: str, first: str) -> Cell:
    if not text:
        return Cell("")
    value = float(text)
    if not math.isfinite(value):
        return Cell("")
    if column in COUNTS:
        return Cell(f"{value:.0f}")
    return Cell(f"{value:.1f}", percent=value if column == first else None)
