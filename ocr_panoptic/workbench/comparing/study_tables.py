"""A study's results, also as Markdown tables: means, and gains over the baselines."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from ocr_panoptic.intervals import Interval, student_quantile
from ocr_panoptic.metrics import class_metrics, of_classes

from .study import Study

Records = Sequence[Mapping[str, Any]]  # of .study.read_runs


@dataclass(frozen=True)
class SystemSummary:
    """
    The runs of a system. What an evaluation left undefined (null) does not count; None where there
    are too few runs.

    Attributes:
        system, baseline: names.
        runs: their number.
        means: metric -> mean and standard deviation (of the sample) over the seeds.
        gains: metric -> the differences to the baseline with the same seed.
        class_gains: class -> the same of :func:`class_values`.
        parameters, seconds_per_iteration, cpu_seconds, peak_memory_bytes: of the model; median,
            mean of a run, largest.
    """

    system: str
    baseline: str
    runs: int
    means: Mapping[str, tuple[float | None, float | None]]
    gains: Mapping[str, Interval | None]
    class_gains: Mapping[str, Interval | None]
    parameters: int | None
    seconds_per_iteration: float | None
    cpu_seconds: float | None
    peak_memory_bytes: int | None


def summarise(study: Study, records: Records) -> list[SystemSummary]:
    """Return the summary of each system, in their order."""
    of = {(record["system"], record["seed"]): record for record in records}
    by_class = {key: class_values(record, study.metrics[0]) for key, record in of.items()}
    classes = list(dict.fromkeys(name for values in by_class.values() for name in values))
    summaries = []
    for name, system in study.systems.items():
        keys = [(name, seed) for seed in system.seeds if (name, seed) in of]
        pairs = [(key, (system.baseline, key[1])) for key in keys if name != system.baseline]
        pairs = [(own, other) for own, other in pairs if other in of]
        runs = [of[key] for key in keys]
        costs = [run["cpu_seconds"] for run in runs if "cpu_seconds" in run]
        times = [run["seconds_per_iteration"] for run in runs]
        summary = SystemSummary(
            system=name,
            baseline=system.baseline,
            runs=len(runs),
            means={m: _spread(r["metrics"].get(m) for r in runs) for m in study.metrics},
            gains={
                m: _gain((of[a]["metrics"].get(m), of[b]["metrics"].get(m)) for a, b in pairs)
                for m in study.metrics
            },
            class_gains={
                c: _gain((by_class[a].get(c), by_class[b].get(c)) for a, b in pairs)
                for c in classes
            },
            parameters=runs[0]["parameters"] if runs else None,
            seconds_per_iteration=statistics.median(times) if times else None,
            cpu_seconds=statistics.fmean(costs) if costs else None,
            peak_memory_bytes=max((run["peak_memory_bytes"] for run in runs), default=None),
        )
        summaries.append(summary)
    return summaries


def class_values(record: Mapping[str, Any], metric: str) -> Mapping[str, float | None]:
    """Return the IoU, PQ or AP of each class of a run that a study's metric, "task/metric", is the
    mean of, or belongs to."""
    task = metric.partition("/")[0]
    names = [m.name for m in class_metrics() if m.task == task]
    found = (key.partition("/")[::2] for key in record["metrics"])
    values = {name: record["metrics"][f"{of}/{name}"] for of, name in found if of == task}
    return of_classes(values, names[0]) if names else {}


def _spread(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    known = [v for v in values if v is not None]
    mean = statistics.fmean(known) if known else None
    return mean, statistics.stdev(known) if len(known) > 1 else None


def _gain(pairs: Iterable[tuple[float | None, float | None]]) -> Interval | None:
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    return Interval.of(differences) if differences else None


Summaries = Sequence[SystemSummary]


def study_report(rows: Summaries, metrics: Sequence[str]) -> str:
    """
    Return all tables of a study, in Markdown.

    Args:
        metrics: of the study, in the order of the columns.
    """
    tables = [study_table(rows, metrics), metric_gains_table(rows, metrics)]
    return paragraphs([*tables, class_gains_table(rows), gain_note(rows, metrics[0])])


def paragraphs(parts: Iterable[str]) -> str:
    """Return a text of the parts that are not empty."""
    return "\n\n".join(filter(None, parts)) + "\n"


def study_table(rows: Summaries, metrics: Sequence[str]) -> str:
    """Return a row for each system: mean ± standard deviation over the seeds; of the first metric
    the difference to the baseline, see :func:`gain`; and what the runs cost."""
    table = []
    for row in rows:
        cells = {"system": row.system, "runs": row.runs}
        for number, metric in enumerate(metrics):
            cells[metric] = plus_minus(*row.means[metric])
            if number == 0:
                cells["difference to the baseline"] = gain(row.gains[metric])
        for column, value, factor, digits in (
            ("parameters (M)", row.parameters, 1e-6, 2),
            ("s per iteration", row.seconds_per_iteration, 1, 2),
            ("CPU s a run", row.cpu_seconds, 1, 0),
            ("peak memory (MiB)", row.peak_memory_bytes, 2**-20, 0),
        ):
            cells[column] = "" if value is None else f"{value * factor:.{digits}f}"
        table.append(cells)
    return markdown(table)


def metric_gains_table(rows: Summaries, metrics: Sequence[str]) -> str:
    """Return a row for each system but the baseline, a column for each metric: its gain, see
    :func:`gain`; "" if there are none."""
    return markdown(
        [
            {"gain of": row.system, **{m: gain(row.gains[m]) for m in metrics}}
            for row in rows
            if any(row.gains.values())
        ]
    )


def class_gains_table(rows: Summaries) -> str:
    """Return a row for each class, a column for each system that has gains of them, see
    :func:`gain`; "" if there are none."""
    columns = [row for row in rows if any(row.class_gains.values())]
    return markdown(
        [
            {"class": name, **{row.system: gain(row.class_gains[name]) for row in columns}}
            for name in (columns[0].class_gains if columns else ())
        ]
    )


def gain(interval: Interval | None) -> str:
    """Return mean and interval of differences, the mean in bold where the interval excludes 0."""
    if interval is None:
        return ""
    mean = f"{interval.mean:+.2f}"
    mean = f"**{mean}**" if interval.excludes_zero else mean
    return mean if interval.half is None else f"{mean} {interval.ends}"


def gain_note(rows: Summaries, metric: str) -> str:
    """Return how to read the gains, by the pairs of runs that there are."""
    intervals = [row.gains[metric] for row in rows]
    pairs = sorted({i.values for i in intervals if i is not None})
    note = (
        "Differences are paired by seed, with their 95 % confidence interval (Student's t) in "
        "brackets; bold: it excludes 0. One in 20 such intervals misses."
    )
    for n in pairs:
        width = "no interval" if n == 1 else f"± {student_quantile(n - 1) / n**0.5:.1f}"
        note += f" {n} pair{'s' * (n > 1)}: {width}" + " standard deviations of them." * (n > 1)
    return note


def plus_minus(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return ""
    return f"{mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def markdown(table: Sequence[Mapping[str, Any]]) -> str:
    return tabulate(table, headers="keys", tablefmt="github", disable_numparse=True)
