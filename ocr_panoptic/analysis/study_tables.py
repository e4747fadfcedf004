"""A study's results as Markdown tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from ocr_panoptic.intervals import Interval, student_quantile

Rows = Sequence[Mapping[str, Any]]  # of .study_summary.summarise


def study_report(rows: Rows, metrics: Sequence[str], classes: Mapping[str, str]) -> str:
    """
    Return all tables of a study, in Markdown.

    Args:
        metrics: of the study.
        classes: class -> its metric.
    """
    tables = [study_table(rows, metrics), metric_gains_table(rows, metrics)]
    tables += [class_gains_table(rows, classes)] if classes else []
    return "\n\n".join([*filter(None, tables), gain_note(rows, metrics[0])]) + "\n"


def study_table(rows: Rows, metrics: Sequence[str]) -> str:
    """
    Args:
        metrics: those of the rows, in the order of the columns.

    Returns:
        a row for each system: mean ± standard deviation over the seeds; of the first metric the
        difference to the baseline, see :func:`gain`; and what the runs cost
    """
    table = []
    for row in rows:
        cells = {"system": row["system"], "runs": row["runs"]}
        for number, metric in enumerate(metrics):
            cells[metric] = plus_minus(row[metric])
            if number == 0:
                cells["difference to the baseline"] = gain(row[f"{metric} - baseline"])
        for column, key, factor, digits in (
            ("parameters (M)", "parameters", 1e-6, 2),
            ("s per iteration", "seconds_per_iteration", 1, 2),
            ("CPU s a run", "cpu_seconds", 1, 0),
            ("peak memory (MiB)", "peak_memory_bytes", 2**-20, 0),
        ):
            cells[column] = "" if row[key] is None else f"{row[key] * factor:.{digits}f}"
        table.append(cells)
    return markdown(table)


def metric_gains_table(rows: Rows, metrics: Sequence[str]) -> str:
    """
    Returns:
        a row for each system but the baseline, a column for each metric: its gain, see
        :func:`gain`; "" if there are none
    """
    return markdown(
        [
            {"gain of": row["system"], **{m: gain(row[f"{m} - baseline"]) for m in metrics}}
            for row in rows
            if any(row[f"{m} - baseline"] for m in metrics)
        ]
    )


def class_gains_table(rows: Rows, metrics: Mapping[str, str]) -> str:
    """
    Args:
        rows: what becomes the columns; those without a difference are left out.
        metrics: class -> metric of the rows.

    Returns:
        a row for each class: the gains over the baseline, see :func:`gain`; "" if there are none
    """
    columns = [row for row in rows if any(row[f"{m} - baseline"] for m in metrics.values())]
    if not columns:
        return ""
    return markdown(
        [
            {"class": name, **{r["system"]: gain(r[f"{metric} - baseline"]) for r in columns}}
            for name, metric in metrics.items()
        ]
    )


def gain(interval: Interval | None) -> str:
    """Mean and interval of the differences, the mean in bold where the interval excludes 0."""
    if interval is None:
        return ""
    mean = f"{interval.mean:+.2f}"
    mean = f"**{mean}**" if interval.excludes_zero else mean
    if interval.half is None:
        return mean
    low, high = interval.mean - interval.half, interval.mean + interval.half
    return f"{mean} [{low:+.2f}, {high:+.2f}]"


def gain_note(rows: Rows, metric: str) -> str:
    """Return how to read the gains, by the pairs of runs that there are."""
    intervals = [row[f"{metric} - baseline"] for row in rows]
    pairs = sorted({i.values for i in intervals if i is not None})
    note = (
        "Differences are paired by seed, with their 95 % confidence interval (Student's t) in "
        "brackets; bold: it excludes 0. One in 20 such intervals misses."
    )
    for n in pairs:
        width = "no interval" if n == 1 else f"± {student_quantile(n - 1) / n**0.5:.1f}"
        note += f" {n} pair{'s' * (n > 1)}: {width}" + " standard deviations of them." * (n > 1)
    return note


def plus_minus(value: tuple[float | None, float | None]) -> str:
    mean, deviation = value
    if mean is None:
        return ""
    return f"{mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def markdown(table: Sequence[Mapping[str, Any]]) -> str:
    return tabulate(table, headers="keys", tablefmt="github", disable_numparse=True)
