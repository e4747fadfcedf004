"""Summary of a study: means, and what each system gains over its baseline."""

import statistics
from collections.abc import Sequence
from typing import Any

from ocr_panoptic.intervals import Interval
from ocr_panoptic.metrics import class_metrics

from .study import Study


def summarise(
    study: Study, records: Sequence[dict[str, Any]], metrics: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """
    Return a row for each system: "system", "baseline", "runs"; for each metric mean and standard
    deviation (of the sample) over the seeds, and as "METRIC - baseline" the :class:`Interval` of
    the differences to the baseline with the same seed; "parameters", "seconds_per_iteration"
    (median), "cpu_seconds" (mean of a run), "peak_memory_bytes" (largest). None where there are too
    few runs. A metric that an evaluation left undefined (null) does not count.

    Args:
        records: of :func:`.study.read_records`.
        metrics: by default those of the study.
    """
    of = {(record["system"], record["seed"]): record for record in records}
    rows = []
    for name, system in study.systems.items():
        runs = [of[name, seed] for seed in system.seeds if (name, seed) in of]
        row: dict[str, Any] = {"system": name, "baseline": system.baseline, "runs": len(runs)}
        for metric in metrics or study.metrics:
            row[metric] = _mean_and_deviation([run["metrics"].get(metric) for run in runs])
            pairs = [
                (run["metrics"].get(metric), of[key]["metrics"].get(metric))
                for run in runs
                if (key := (system.baseline, run["seed"])) in of and name != system.baseline
            ]
            differences = [a - b for a, b in pairs if a is not None and b is not None]
            row[f"{metric} - baseline"] = Interval.of(differences) if differences else None
        row["parameters"] = runs[0]["parameters"] if runs else None
        times = [run["seconds_per_iteration"] for run in runs]
        row["seconds_per_iteration"] = statistics.median(times) if runs else None
        costs = [run["cpu_seconds"] for run in runs if "cpu_seconds" in run]
        row["cpu_seconds"] = statistics.fmean(costs) if costs else None
        row["peak_memory_bytes"] = max((run["peak_memory_bytes"] for run in runs), default=None)
        rows.append(row)
    return rows


def _mean_and_deviation(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    known = [v for v in values if v is not None]
    mean = statistics.fmean(known) if known else None
    return mean, statistics.stdev(known) if len(known) > 1 else None


def class_metric_names(study: Study, records: Sequence[dict[str, Any]]) -> dict[str, str]:
    """
    Returns:
        class -> its metric in the records: the IoU, PQ or AP that the study's first metric is the
        mean of, or belongs to
    """
    task = study.metrics[0].partition("/")[0]
    names = [metric.name for metric in class_metrics() if metric.task == task]
    prefix = f"{task}/{names[0]}-" if names else "none"
    found = dict.fromkeys(key for record in records for key in record["metrics"])
    return {key.removeprefix(prefix): key for key in found if key.startswith(prefix)}
