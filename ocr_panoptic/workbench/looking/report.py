"""A self-contained HTML page about a run: metrics, pictures, classes, losses, settings."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from detectron2.data import Metadata
from markupsafe import Markup

from ocr_panoptic.formats.run_folder import StoredEvaluation
from ocr_panoptic.metrics import Metric, Values, class_metrics, headline_metrics, per_class_rows
from ocr_panoptic.visualization.overlays import HEAT_DECADES

from .charts import inline_svg, loss_curves, loss_figure
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
    Args:
        title: the headline.
        description: one or two sentences below it.
        dataset: name of the data set that was evaluated.
        evaluation: of :func:`ocr_panoptic.formats.run_folder.read_evaluation`.
        training_log: of :func:`.read_training_log`; the section on training
            is left out where it is empty.
        images: of :func:`figures.image_figures`.
        metadata: of the data set.
        settings: what the page says about the run.
        confusion: data URI of the picture of the confusion matrix, "" for none.
        ranking: of :func:`ranking.ranked_images`, with their pictures; () for none.

    Returns:
        an HTML document that loads nothing from elsewhere.
    """
    tasks = evaluation.results
    per_class = per_class_rows(tasks)
    columns, rows = class_table(per_class, metadata)
    return TEMPLATES.get_template("report.html").render(
        title=title,
        description=description,
        dataset=dataset,
        groups=metric_cards(tasks),
        images=images,
        has_regions=any(image.regions for image in images),
        has_relation=any(image.relation for image in images),
        is_panoptic="panoptic_seg" in tasks,
        heat_ticks=(f"1/{10**HEAT_DECADES}", "maximum, logarithmic"),
        class_columns=columns,
        class_rows=rows,
        confusion=confusion,
        ranking=ranking,
        ranked_by="PQ" if "panoptic_seg" in tasks else "mIoU",
        loss_meanings=MEANINGS,
        absent_classes=len(per_class) - len(rows),
        charts=[
            (title, curves, _loss_chart(title, curves))
            for title, curves in loss_curves(training_log).items()
        ],
        settings=settings,
    )


class Card(NamedTuple):
    label: str
    meaning: str
    value: float | None  # percent
    interval: tuple[float, float] | None = None  # of 95% over the images


class Cell(NamedTuple):
    text: str  # "" where undefined
    percent: float | None = None  # length of the bar behind the text


class ScoredClass(NamedTuple):
    name: str
    kind: str  # "thing", "stuff", or "" for a class of the semantic head alone
    color: str  # CSS, "" where the metadata has none
    cells: list[Cell]


def metric_cards(tasks: Mapping[str, Values]) -> dict[str, list[Card]]:
    """Return the headline metrics by group; tasks that were not evaluated are left out."""
    return {
        group: [_card(metric, tasks[metric.task]) for metric in metrics]
        for group, metrics in headline_metrics(tasks).items()
    }


def _card(metric: Metric, scores: Values) -> Card:
    ends = scores.get(f"{metric.name}_low"), scores.get(f"{metric.name}_high")
    return Card(
        metric.label,
        metric.meaning + (", mean over the classes" if metric.column else ""),
        scores[metric.name],
        None if None in ends else ends,
    )


def class_table(
    per_class: Sequence[Mapping[str, Any]], metadata: Metadata
) -> tuple[list[Metric], list[ScoredClass]]:
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
        ScoredClass(
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


def _loss_chart(title: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> Markup:
    ends = [f"{name} from {c[0][1]:.3g} to {c[-1][1]:.3g}" for name, c in curves.items()]
    return inline_svg(loss_figure(curves), "chart", f"{title}: {'; '.join(ends)}")
