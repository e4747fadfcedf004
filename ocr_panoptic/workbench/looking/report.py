"""A self-contained HTML page about a run: metrics, pictures, classes, losses, settings."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from detectron2.data import Metadata

from ocr_panoptic.formats.run_folder import StoredEvaluation
from ocr_panoptic.metrics import Metric, Values, class_metrics, headline_metrics, per_class_rows
from ocr_panoptic.visualization.overlays import HEAT_DECADES

from .charts import loss_curves, loss_figure, png_source
from .figures import ImageFigures, css_color
from .ranking import MEANINGS, RankedImage
from .templates import TEMPLATES


def render_report(
    *,
    title: str,
    description: str,
    dataset: str,
    evaluation: StoredEvaluation,
    training_log: Sequence[Mapping[str, float]],
    images: Sequence[ImageFigures],
    metadata: Metadata,
    settings: Mapping[str, Any],
    confusion: str = "",
    ranking: Sequence[RankedImage] = (),
) -> str:
    """
    Return a self-contained HTML document.

    Args:
        evaluation: result of :func:`ocr_panoptic.formats.run_folder.read_evaluation`.
        training_log: rows of :func:`.read_training_log`; if empty, the page has no section on
            training.
        metadata: names and colours of the classes.
        settings: facts about the run, by name.
        confusion: data URI of the confusion matrix's picture; "" for no picture.
    """
    results = evaluation.results
    per_class = per_class_rows(results)
    columns, rows = class_table(per_class, metadata)
    return TEMPLATES.get_template("report.html").render(
        title=title,
        description=description,
        dataset=dataset,
        groups=metric_cards(results),
        images=images,
        is_panoptic="panoptic_seg" in results,
        heat_decades=HEAT_DECADES,
        class_columns=columns,
        class_rows=rows,
        confusion=confusion,
        ranking=ranking,
        ranked_by="PQ" if "panoptic_seg" in results else "mIoU",
        loss_meanings=MEANINGS,
        absent_classes=len(per_class) - len(rows),
        charts={
            name: png_source(loss_figure(curves))
            for name, curves in loss_curves(training_log).items()
        },
        settings=settings,
    )


class Card(NamedTuple):
    """A headline metric in percent, with its 95 % interval over the images."""

    label: str
    meaning: str
    value: float | None
    interval: tuple[float, float] | None


class ScoredClass(NamedTuple):
    """A row of the class table; ``kind`` and ``color`` are "" if unknown."""

    name: str
    kind: str
    color: str
    cells: list[str]


def metric_cards(results: Mapping[str, Values]) -> dict[str, list[Card]]:
    """Return the headline metrics by group; tasks that were not evaluated are left out."""
    groups: dict[str, list[Card]] = {}
    for group, metrics in headline_metrics(results).items():
        for metric in metrics:
            values = results[metric.task]
            low, high = values.get(f"{metric.name}_low"), values.get(f"{metric.name}_high")
            interval = None if low is None or high is None else (low, high)
            meaning = metric.meaning + (", mean over the classes" if metric.column else "")
            card = Card(metric.label, meaning, values[metric.name], interval)
            groups.setdefault(group, []).append(card)
    return groups


def class_table(
    per_class: Sequence[Mapping[str, Any]], metadata: Metadata
) -> tuple[list[Metric], list[ScoredClass]]:
    """
    Return the metrics that some class has a value for, and the rows of the table.

    Rows are things, stuff, then classes without a kind. Classes that neither occur nor are
    predicted are left out.

    Args:
        per_class: result of :func:`ocr_panoptic.metrics.per_class_rows`.
        metadata: names and colours of the classes.
    """
    kinds = {1: "thing", 0: "stuff", None: ""}
    colors = dict(zip(metadata.stuff_classes, metadata.stuff_colors, strict=True))
    things = metadata.get("thing_classes", ()), metadata.get("thing_colors", ())
    colors.update(zip(*things, strict=True))
    columns = [m for m in class_metrics() if any(row[m.column] is not None for row in per_class)]
    rows = []
    for row in sorted(per_class, key=lambda row: list(kinds).index(row["isthing"])):
        cells = []
        for metric in columns:
            value = row[metric.column]
            digits = 0 if metric.is_count else 1
            cells.append("–" if value is None else f"{value:.{digits}f}")
        if set(cells) - {"–", "0"}:
            color = css_color(colors[row["class"]]) if row["class"] in colors else ""
            rows.append(ScoredClass(row["class"], kinds[row["isthing"]], color, cells))
    return columns, rows
