"""Tables of a study whose systems are compared at several places."""

from collections.abc import Mapping, Sequence
from typing import Any

from ocr_panoptic.analysis import study_tables as flat
from ocr_panoptic.analysis.study_summary import class_metric_names, summarise
from ocr_panoptic.analysis.study_tables import gain, markdown, plus_minus

from .study_file import PlacedStudy

Rows = Sequence[Mapping[str, Any]]  # of placed_rows


def placed_rows(
    study: PlacedStudy, records: Sequence[dict[str, Any]], metrics: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the rows of :func:`.summarise`, with "scheme" and "place"."""
    return [
        {**row, "scheme": system.scheme, "place": system.place}
        for row, system in zip(
            summarise(study, records, metrics), study.systems.values(), strict=True
        )
    ]


def study_tables(
    study: PlacedStudy, records: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], str]:
    """Return the rows with the metrics of the classes, and all tables in Markdown."""
    classes = class_metric_names(study, records)
    rows = placed_rows(study, records, [*study.metrics, *classes.values()])
    return rows, study_report(rows, study.metrics, classes)


def study_report(rows: Rows, metrics: Sequence[str], classes: Mapping[str, str]) -> str:
    """
    Return all tables in Markdown.

    Args:
        metrics: of the study.
        classes: class -> its metric.
    """
    if not any(row["place"] for row in rows):
        return flat.study_report(rows, metrics, classes)
    tables = [flat.study_table(rows, metrics)]
    tables += [gains_table(rows, metric) for metric in metrics]
    for scheme in dict.fromkeys(row["scheme"] for row in rows) if classes else ():
        own = [row for row in rows if row["scheme"] == scheme]
        tables.append(flat.class_gains_table(own, classes))
    return "\n\n".join([*filter(None, tables), flat.gain_note(rows, metrics[0])]) + "\n"


def gains_table(rows: Rows, metric: str) -> str:
    """
    Return a row for each scheme, a column for each place: what the metric gains over the baseline
    there, see :func:`.gain`; of the baseline itself mean ± standard deviation.
    """
    places = dict.fromkeys(row["place"] for row in rows)
    table = []
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        own = {row["place"]: row for row in rows if row["scheme"] == scheme}
        cells = {metric: scheme}
        for place in places:
            row = own[place]
            is_baseline = row["system"] == row["baseline"]
            cells[place or "gain"] = (
                plus_minus(row[metric]) if is_baseline else gain(row[f"{metric} - baseline"])
            )
        table.append(cells)
    return markdown(table)
