"""Show a study's results in Markdown tables: means, and gains over the baseline."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ocr_panoptic.workbench.comparing.compare import class_values, markdown, plus_minus
from ocr_panoptic.workbench.comparing.intervals import Interval, gain_text, student_quantile
from ocr_panoptic.workbench.comparing.study import Records

from .study_file import PlacedStudy


@dataclass(frozen=True)
class SystemSummary:
    """
    The results of a system (a model configuration in a study), summarised over its runs.

    Undefined metrics (null) are left out. A value that needs more finished runs is None.

    Attributes:
        system, baseline: names of the system and of its baseline.
        runs: number of finished runs.
        means: mean and sample standard deviation over the seeds, by metric.
        gains: gain over the baseline in runs with equal seeds, by metric.
        class_gains: gain over the baseline in the class's IoU, PQ or AP, by class.
        costs: number of parameters, median seconds per iteration, mean CPU seconds of a run, and
            largest peak memory of a run in bytes.
    """

    system: str
    baseline: str
    runs: int
    means: Mapping[str, tuple[float | None, float | None]]
    gains: Mapping[str, Interval | None]
    class_gains: Mapping[str, Interval | None]
    costs: tuple[float | None, ...]


Summaries = Sequence[SystemSummary]


def summarise(study: PlacedStudy, records: Records) -> list[SystemSummary]:
    """Summarise the finished runs of each system, in the study's order of systems."""
    of = {(record["system"], record["seed"]): record for record in records}
    by_class = {key: class_values(run, study.metrics[0]) for key, run in of.items()}
    classes = list(dict.fromkeys(name for values in by_class.values() for name in values))

    def known(runs: Records, key: str) -> list[float]:
        return [run[key] for run in runs if run.get(key) is not None]

    def gain_of(pairs: Iterable[tuple[float | None, float | None]]) -> Interval | None:
        differences = [a - b for a, b in pairs if a is not None and b is not None]
        return Interval.of(differences) if differences else None

    summaries = []
    for name, system in study.systems.items():
        keys = [(name, seed) for seed in system.seeds if (name, seed) in of]
        pairs = [(key, (system.baseline, key[1])) for key in keys if name != system.baseline]
        pairs = [(own, other) for own, other in pairs if other in of]
        runs, means, gains = [of[key] for key in keys], {}, {}
        for m in study.metrics:
            values = known([run["metrics"] for run in runs], m)
            deviation = statistics.stdev(values) if len(values) > 1 else None
            means[m] = (statistics.fmean(values) if values else None, deviation)
            gains[m] = gain_of((of[a]["metrics"].get(m), of[b]["metrics"].get(m)) for a, b in pairs)
        costs = tuple(
            function(values) if (values := known(runs, key)) else None
            for key, function in (
                ("parameters", max),
                ("seconds_per_iteration", statistics.median),
                ("cpu_seconds", statistics.fmean),
                ("peak_memory_bytes", max),
            )
        )
        of_class = {
            c: gain_of((by_class[a].get(c), by_class[b].get(c)) for a, b in pairs) for c in classes
        }
        summaries.append(
            SystemSummary(name, system.baseline, len(runs), means, gains, of_class, costs)
        )
    return summaries


def study_report(study: PlacedStudy, rows: Summaries) -> str:
    """Return all tables of a study in Markdown; ``rows`` is the result of :func:`summarise`."""
    if any(system.place for system in study.systems.values()):
        tables = [gains_table(study, rows, metric) for metric in study.metrics]
        for scheme in study.schemes:
            own = [row for row in rows if study.systems[row.system].scheme == scheme]
            tables.append(class_gains_table(own))
    else:
        tables = [systems_table(rows, study.metrics), class_gains_table(rows)]
    tables += [costs_table(rows), gain_note(rows, study.metrics[0])]
    return "\n\n".join(filter(None, tables)) + "\n"


def systems_table(rows: Summaries, metrics: Sequence[str]) -> str:
    """
    Return a Markdown table with a row for each system and a column for each metric.

    The baseline's row shows means ± standard deviations over the seeds, the other rows show gains.
    """
    return markdown(
        [
            {
                "system": row.system,
                "runs": row.runs,
                **{metric: _cell(row, metric) for metric in metrics},
            }
            for row in rows
        ]
    )


def _cell(row: SystemSummary, metric: str) -> str:
    is_baseline = row.system == row.baseline
    return plus_minus(*row.means[metric]) if is_baseline else gain_text(row.gains[metric])


def costs_table(rows: Summaries) -> str:
    """Return a Markdown table of what the runs of each system cost."""
    columns = (
        ("parameters (M)", 1e-6, 2),
        ("s per iteration", 1, 2),
        ("CPU s a run", 1, 0),
        ("peak memory (MiB)", 2**-20, 0),
    )
    table = []
    for row in rows:
        cells = {"cost of": row.system, "runs": row.runs}
        for value, (column, factor, digits) in zip(row.costs, columns):
            cells[column] = "" if value is None else f"{value * factor:.{digits}f}"
        table.append(cells)
    return markdown(table)


def gains_table(study: PlacedStudy, rows: Summaries, metric: str) -> str:
    """
    Return a Markdown table of the gains in a metric: a row for each scheme, a column per place.

    Places are the entries of ``at`` in the study file. The baseline's row shows the metric's mean ±
    standard deviation instead of a gain.
    """
    table = {scheme: {metric: scheme} for scheme in study.schemes}
    for row in rows:
        system = study.systems[row.system]
        table[system.scheme][system.place] = _cell(row, metric)
    return markdown([*table.values()])


def class_gains_table(rows: Summaries) -> str:
    """Return a Markdown table of gains: a row for each class, a column per non-baseline system."""
    columns = [row for row in rows if any(row.class_gains.values())]
    return markdown(
        [
            {"class": name, **{row.system: gain_text(row.class_gains[name]) for row in columns}}
            for name in (columns[0].class_gains if columns else ())
        ]
    )


def gain_note(rows: Summaries, metric: str) -> str:
    """Return a note on how to read the tables' gains and their confidence intervals."""
    note = (
        "Differences are paired by seed, with their 95 % confidence interval (Student's t) in "
        "brackets; bold: it excludes 0. One in 20 such intervals misses."
    )
    for n in sorted({row.gains[metric].values for row in rows if row.gains[metric]}):
        width = "no interval" if n == 1 else f"± {student_quantile(n - 1) / n**0.5:.1f}"
        note += f" {n} pair{'s' * (n > 1)}: {width}" + " standard deviations of them." * (n > 1)
    return note
