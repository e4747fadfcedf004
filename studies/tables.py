"""Make the tables of a study; with ``at`` in its file, gains have a column for each place."""

from ocr_panoptic.workbench.comparing.compare import markdown, plus_minus
from ocr_panoptic.workbench.comparing.intervals import gain_text

from . import study_tables as flat
from .study_file import PlacedStudy
from .study_tables import Summaries


def placed_report(study: PlacedStudy, rows: Summaries) -> str:
    """
    Return all tables of a study in Markdown.

    Args:
        rows: results of :func:`.summarise` for this study.
    """
    if not any(system.place for system in study.systems.values()):
        return flat.study_report(rows, study.metrics)
    tables = [flat.study_table(rows, study.metrics)]
    tables += [gains_table(study, rows, metric) for metric in study.metrics]
    for scheme in study.schemes:
        own = [row for row in rows if study.systems[row.system].scheme == scheme]
        tables.append(flat.class_gains_table(own))
    return flat.paragraphs([*tables, flat.gain_note(rows, study.metrics[0])])


def gains_table(study: PlacedStudy, rows: Summaries, metric: str) -> str:
    """
    Return a table with a row for each scheme and a column for each place (entry of ``at``).

    A cell has the mean and interval of the scheme's gain in the metric, over the baseline at the
    same place. The baseline's cells have the mean ± standard deviation of the metric.
    """
    table = {scheme: {metric: scheme} for scheme in study.schemes}
    for row in rows:
        system = study.systems[row.system]
        is_baseline = row.system == row.baseline
        cell = plus_minus(*row.means[metric]) if is_baseline else gain_text(row.gains[metric])
        table[system.scheme][system.place] = cell
    return markdown([*table.values()])
