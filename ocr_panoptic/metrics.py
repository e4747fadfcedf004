"""
The table of the metrics that evaluations report.

The results of an evaluation map each task ("panoptic_seg", "sem_seg", "bbox", "segm", "offsets") to
a dict of metrics under Detectron2's names, such as "PQ" and "PQ-<class>". "PQ_low" and "PQ_high"
are the ends of a 95 % confidence interval for the PQ. "objects", "count_error" and "count_bias" are
numbers of objects in an image; all others are percentages or numbers of segments. An undefined
value is NaN, or None in a file.

Only metrics in ``METRICS`` appear in ``per_class.csv``, in the log's table and on the HTML page of
a run.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, float | None]  # metric -> value
Results = Mapping[str, Values]  # task -> values


def named(metric: str, classes: Iterable[str], values: Iterable[float]) -> dict[str, float]:
    """Return a metric's values for the classes, keyed by Detectron2's names such as "PQ-car"."""
    return {f"{metric}-{name}": value for name, value in zip(classes, values, strict=True)}


def of_classes(values: Values, metric: str) -> dict[str, float | None]:
    """Return a metric's values keyed by class, from values with keys such as "PQ-car"."""
    prefix = f"{metric}-"
    return {key.removeprefix(prefix): v for key, v in values.items() if key.startswith(prefix)}


@dataclass(frozen=True)
class Metric:
    """A metric, and how tables and pages show it."""

    task: str  # task whose results contain the metric
    name: str  # key of the value; the key for a class is <name>-<class>
    label: str  # name in tables and pages
    meaning: str
    group: str = ""  # heading above the value over all classes; "" hides this value
    column: str = ""  # heading of the values for each class; "" if the metric has no values
    is_count: bool = False  # whether the values for each class are counts, not percent
    higher_is_better: bool = True


_THINGS = "Things"
_PANOPTIC, _SEMANTIC, _INSTANCES = "Panoptic segmentation", "Semantic segmentation", "Instances"
_BOUNDARIES = "Boundaries and confidence"
_OFFSETS = "Offsets"
_IOU = "intersection over union"
_AP = "average precision (mean over the IoU thresholds 0.5 to 0.95) of"

# fmt: off
METRICS = (
    Metric("panoptic_seg", "PQ", "PQ", "panoptic quality", _PANOPTIC, "PQ"),
    Metric("panoptic_seg", "PQ_st", "PQ stuff", "PQ of stuff (uncountable) classes", _PANOPTIC),
    Metric("panoptic_seg", "SQ", "SQ", "segmentation quality (IoU of matches)", _PANOPTIC, "SQ"),
    Metric("panoptic_seg", "RQ", "RQ", "recognition quality (F1 of matching)", _PANOPTIC, "RQ"),
    Metric("panoptic_seg", "PQ_th", "PQ things", "PQ of thing (countable) classes", _THINGS),
    Metric("panoptic_seg", "RQ_th", "RQ things", "F1 of object detection", _THINGS),
    Metric("panoptic_seg", "objects", "Objects", "mean number of true objects in an image", _THINGS,
           "objects", higher_is_better=False),
    Metric("panoptic_seg", "count_error", "Count error",
           "mean absolute error of the number of objects in an image", _THINGS, "count_error",
           higher_is_better=False),
    Metric("panoptic_seg", "count_bias", "Count bias",
           "mean of predicted minus true number of objects in an image", _THINGS, "count_bias",
           higher_is_better=False),
    Metric("panoptic_seg", "TP", "TP", "matched segments", column="TP", is_count=True),
    Metric("panoptic_seg", "FP", "FP", "spurious segments", column="FP", is_count=True),
    Metric("panoptic_seg", "FN", "FN", "missed segments", column="FN", is_count=True),
    Metric("sem_seg", "mIoU", "mIoU", f"{_IOU}, mean over ground-truth classes", _SEMANTIC),
    Metric("sem_seg", "mIoU_truth_or_predicted", "mIoU, predicted too",
           f"{_IOU}, mean over ground-truth or predicted classes", _SEMANTIC),
    Metric("sem_seg", "fwIoU", "fwIoU", f"{_IOU}, weighted by class frequency", _SEMANTIC),
    Metric("sem_seg", "pACC", "pACC", "share of correct pixels", _SEMANTIC),
    Metric("sem_seg", "IoU", "IoU", _IOU, column="IoU"),
    Metric("sem_seg", "ACC", "Accuracy", "share of correct pixels", column="ACC"),
    Metric("bbox", "AP", "Box AP", f"{_AP} boxes", _INSTANCES, "AP_box"),
    Metric("segm", "AP", "Mask AP", f"{_AP} masks", _INSTANCES, "AP_mask"),
    Metric("panoptic_seg", "BoundaryPQ", "Boundary PQ",
           "PQ with min(IoU, Boundary IoU) in place of the IoU", _BOUNDARIES, "BoundaryPQ"),
    Metric("sem_seg", "mBoundaryIoU", "Boundary IoU",
           f"{_IOU} of boundary regions, mean over ground-truth classes", _BOUNDARIES),
    Metric("sem_seg", "ECE", "Calibration error",
           "mean difference between confidence and accuracy of the pixels, in 15 bins; 0 is best",
           _BOUNDARIES, higher_is_better=False),
    Metric("sem_seg", "BoundaryIoU", "Boundary IoU", f"{_IOU} of boundary regions",
           column="BoundaryIoU"),
    Metric("offsets", "F1", "Boundary F1", "F1 of the pixels near a boundary", _OFFSETS),
    Metric("offsets", "precision", "Precision", "precision of pixels near a boundary", _OFFSETS),
    Metric("offsets", "recall", "Recall", "recall of pixels near a boundary", _OFFSETS),
    Metric("offsets", "direction_ACC", "Direction accuracy",
           "share of correct directions near boundaries", _OFFSETS),
)
# fmt: on


def headline_metrics(results: Results) -> dict[str, list[Metric]]:
    """
    Return the headline metrics in ``results``: a list of metrics for each group name.

    If there is only one stuff class, such as the background of cells, things come first.
    """
    is_thing = of_classes(results.get("panoptic_seg", {}), "isthing")
    groups: dict[str, list[Metric]] = {_THINGS: []} if [*is_thing.values()].count(0) == 1 else {}
    for metric in METRICS:
        if metric.group and metric.name in results.get(metric.task, {}):
            groups.setdefault(metric.group, []).append(metric)
    return {group: listed for group, listed in groups.items() if listed}


def class_metrics() -> list[Metric]:
    """Return the metrics with values for each class, in the order of ``METRICS``."""
    return [metric for metric in METRICS if metric.column]


def per_class_rows(results: Results) -> list[dict[str, Any]]:
    """
    Return a row for each class name; classes with panoptic metrics come first.

    A row has "class" (the name), "isthing" (1, 0, or None if unknown) and a value for each metric's
    column; a missing or undefined value is None.
    """
    columns = {m.column: of_classes(results.get(m.task, {}), m.name) for m in class_metrics()}
    is_thing = of_classes(results.get("panoptic_seg", {}), "isthing")
    things = [name for name, value in is_thing.items() if value == 1]
    if len(things) == 1:  # Detectron2 then leaves out "AP-<class>", which equals "AP"
        for key, task in (("AP_box", "bbox"), ("AP_mask", "segm")):
            if task in results and not columns[key]:
                columns[key] = {things[0]: results[task].get("AP")}
    names = dict.fromkeys(name for values in columns.values() for name in values)
    rows = []
    for name in names:
        found = {key: values.get(name) for key, values in columns.items()}
        finite = {k: v if v is None or math.isfinite(v) else None for k, v in found.items()}
        rows.append({"class": name, "isthing": is_thing.get(name), **finite})
    return rows
