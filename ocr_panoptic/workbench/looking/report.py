"""A self-contained HTML page about a run: metrics, pictures, classes, losses, settings."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from detectron2.data import Metadata
from matplotlib.figure import Figure

from ocr_panoptic.metrics import Metric, Values, class_metrics, headline_metrics, per_class_rows
from ocr_panoptic.predict.overlays import HEAT_DECADES

from .figures import ImageFigures, css_color
from .templates import TEMPLATES

MEANINGS = {
    "masks": "matched segments with an IoU below 1",
    "boundaries": "wrong pixels within 5 px of a true and of a predicted boundary",
    "confusions": "right place, wrong class",
    "false positives": "predicted, but not there",
    "misses": "there, but not predicted",
}


class RankedImage(NamedTuple):
    """
    An image with its score (PQ or mIoU), and the score lost to each kind of error, in percent.

    The score and all losses add up to 100.
    """

    figures: ImageFigures
    score: float
    losses: Mapping[str, float]


def worst_images(
    rows: Sequence[Mapping[str, str]], metric: str, number: int
) -> list[tuple[str, float, dict[str, float]]]:
    """
    Return the file names, scores and losses of the images with the lowest scores, worst first.

    An image's losses say how much each kind of error lowers the score. Images without a score are
    left out. ``rows`` comes from :func:`.read_table`; ``metric`` is the column with the score.
    """
    kinds = [kind for kind in MEANINGS if any(kind in row for row in rows)]
    scored = [row for row in rows if metric in row]
    scored.sort(key=lambda row: (float(row[metric]), row["file_name"]))
    return [
        (
            row["file_name"],
            float(row[metric]),
            {kind: float(row.get(kind, math.nan)) for kind in kinds},
        )
        for row in scored[:number]
    ]


# Title of a chart -> (key in the training log, label) of each curve.
LOSSES = {
    "Total loss": (("total_loss", "total"),),
    "Semantic segmentation": (("loss_sem_seg", "final"), ("loss_sem_seg_coarse", "coarse")),
    "Instances": (
        ("loss_cls", "box class"),
        ("loss_box_reg", "box regression"),
        ("loss_mask", "mask"),
        ("loss_rpn_cls", "RPN class"),
        ("loss_rpn_loc", "RPN regression"),
    ),
}

Curve = list[tuple[float, float]]  # iterations done, loss


def loss_curves(log: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Curve]]:
    """
    Return the loss curves in a training log: for each chart's title, a dict of curves by label.

    NaN, infinity and 0, which a logarithmic axis cannot show, are left out, as are charts without a
    curve. ``log`` comes from :func:`.read_training_log`.
    """
    charts = {}
    for title, losses in LOSSES.items():
        curves = {
            label: [(r["iteration"] + 1, r[k]) for r in log if 0 < r.get(k, math.nan) < math.inf]
            for k, label in losses
        }
        curves = {label: curve for label, curve in curves.items() if curve}
        if curves:
            charts[title] = curves
    return charts


def loss_figure(curves: Mapping[str, Curve]) -> Figure:
    """Return a plot of losses on a logarithmic axis, with the last values in the legend."""
    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes = figure.subplots()
    for label, curve in curves.items():
        axes.plot(*zip(*curve), label=f"{label} {curve[-1][1]:.3g}")
    axes.set(xlabel="iterations", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return figure


def png_source(content: Figure | bytes) -> str:
    """Return a figure, or the bytes of a PNG file, as a data URI."""
    if isinstance(content, Figure):
        buffer = io.BytesIO()
        content.savefig(buffer, format="png", dpi=110)
        content = buffer.getvalue()
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def render_report(
    *,
    title: str,
    description: str,
    dataset: str,
    results: Mapping[str, Values],
    training_log: Sequence[Mapping[str, float]],
    images: Sequence[ImageFigures],
    metadata: Metadata,
    settings: Mapping[str, Any],
    confusion: str = "",
    ranking: Sequence[RankedImage] = (),
) -> str:
    """
    Return a run's report as a self-contained HTML document.

    Args:
        results: stored results of an evaluation: a dict of metric values for each task.
        training_log: losses of each logged iteration; [] leaves out the section on training.
        confusion: data URI of the confusion matrix's picture; "" leaves it out.
    """
    per_class = per_class_rows(results)
    columns = [m for m in class_metrics() if any(row[m.column] is not None for row in per_class)]
    rows = [row for row in per_class if any(occurs(row[m.column], m) for m in columns)]
    rows.sort(key=lambda row: (1, 0, None).index(row["isthing"]))  # things, stuff, others
    colors = dict(zip(metadata.stuff_classes, metadata.stuff_colors, strict=True))
    things = metadata.get("thing_classes", ()), metadata.get("thing_colors", ())
    colors.update(zip(*things, strict=True))
    return TEMPLATES.get_template("report.html").render(
        title=title,
        description=description,
        dataset=dataset,
        groups=headline_metrics(results),
        results=results,
        images=images,
        is_panoptic="panoptic_seg" in results,
        heat_decades=HEAT_DECADES,
        class_columns=columns,
        class_rows=rows,
        colors={name: css_color(color) for name, color in colors.items()},
        confusion=confusion,
        ranking=ranking,
        ranked_by="PQ" if "panoptic_seg" in results else "mIoU",
        loss_meanings=MEANINGS,
        absent_classes=len(per_class) - len(rows),
        charts={k: png_source(loss_figure(v)) for k, v in loss_curves(training_log).items()},
        settings=settings,
    )


def occurs(value: float | None, metric: Metric) -> bool:
    """Return whether a metric's value shows that a class occurs in ground truth or predictions."""
    return value is not None and not (metric.is_count and value == 0)
