"""One self-contained HTML page about a run: metrics, pictures, classes, losses, settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from detectron2.data import Metadata

from ocr_panoptic.formats.run_folder import Evaluation
from ocr_panoptic.metrics import per_class_rows

from .figures import ImageFigures
from .overlays import HEAT_DECADES
from .ranking import MEANINGS, RankedImage
from .reliability import reliability_svg
from .report_sections import class_table, loss_charts, metric_cards
from .templates import TEMPLATES


def render_report(
    *,
    title: str,
    description: str,
    dataset: str,
    evaluation: Evaluation,
    training_log: Sequence[Mapping[str, float]],
    images: Sequence[ImageFigures],
    metadata: Metadata,
    settings: Mapping[str, Any],
    confusion: str = "",
    ranking: Sequence[RankedImage] = (),
    calibration: Sequence[Mapping[str, str]] = (),
) -> str:
    """
    Args:
        title: the headline.
        description: one or two sentences below it.
        dataset: name of the data set that was evaluated.
        evaluation: of :func:`ocr_panoptic.formats.run_folder.read_evaluation`.
        training_log: of :func:`ocr_panoptic.formats.run_folder.read_training_log`; the section on training
            is left out where it is empty.
        images: of :func:`figures.image_figures`.
        metadata: of the data set.
        settings: what the page says about the run.
        confusion: data URI of the picture of the confusion matrix, "" for none.
        ranking: of :func:`ranking.ranked_images`, with their pictures; () for none.
        calibration: of :func:`reliability.reliability_svg`; () for none.

    Returns:
        an HTML document that loads nothing from elsewhere.
    """
    per_class = per_class_rows(evaluation.tasks)
    columns, rows = class_table(per_class, metadata)
    return TEMPLATES.get_template("report.html").render(
        title=title,
        description=description,
        dataset=dataset,
        groups=metric_cards(evaluation.tasks),
        images=images,
        has_regions=any(image.regions for image in images),
        has_relation=any(image.relation for image in images),
        is_panoptic="panoptic_seg" in evaluation.tasks,
        heat_ticks=(f"1/{10**HEAT_DECADES}", "maximum, logarithmic"),
        class_columns=columns,
        class_rows=rows,
        confusion=confusion,
        ranking=ranking,
        ranked_by="PQ" if "panoptic_seg" in evaluation.tasks else "mIoU",
        loss_meanings=MEANINGS,
        reliability=reliability_svg(calibration),
        ece=evaluation.tasks.get("sem_seg", {}).get("ECE"),
        absent_classes=len(per_class) - len(rows),
        charts=loss_charts(training_log),
        settings=settings,
    )
