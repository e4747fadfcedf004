"""The files that say what came of a study."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocr_panoptic.files import write_json, write_text
from ocr_panoptic.visualization import gain_figure, study_curves, study_report

from .study_file import Study
from .study_summary import class_metric_names, summarise

Records = Sequence[dict[str, Any]]  # of .study.read_records


def study_tables(study: Study, records: Records) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of :func:`.summarise` with the metrics of the classes, and all tables in
    Markdown."""
    classes = class_metric_names(study, records)
    rows = summarise(study, records, [*study.metrics, *classes.values()])
    return rows, study_report(rows, study.metrics, classes)


def write_study(
    study: Study, records: Records, output: Path, fields: Mapping[str, Any] | None = None
) -> str:
    """
    Write tables.md, results.json, curves.png and, with ``fields``, gains.png; return the tables.

    Args:
        output: folder.
        fields: place -> its receptive field, see :func:`.gain_figure`.
    """
    rows, report = study_tables(study, records)
    write_text(output / "tables.md", report)
    write_json(output / "results.json", records, indent=1)
    figures = {"curves.png": study_curves(rows, records, study.metrics[0])}
    # At first there are runs of the baseline alone.
    if fields and any(row[f"{study.metrics[0]} - baseline"] for row in rows):
        figures["gains.png"] = gain_figure(rows, study.metrics[0], fields)
    for name, figure in figures.items():
        figure.savefig(output / name, dpi=100)
    return report
