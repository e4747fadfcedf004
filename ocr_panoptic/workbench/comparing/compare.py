"""Compares a config's head with standard heads that are trained in the same way."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ocr_panoptic.config.files import load_config
from ocr_panoptic.config.keys import PANOPTIC
from ocr_panoptic.config.unread import defaults_of_unread
from ocr_panoptic.errors import UserError
from ocr_panoptic.metrics import class_metrics, of_classes

from .intervals import Interval, gain_text
from .study import Records, Study, System

OURS = "ours"
STANDARD = {"plain": "none", "PPM": "PPM", "OCR": "OCR"}  # head -> MODEL.CONTEXT.NAME
LEVEL = 1.0  # points; a difference is level if its interval lies within -LEVEL..LEVEL
_PANOPTIC = ("panoptic_seg/PQ", "panoptic_seg/PQ_th", "panoptic_seg/PQ_st", "sem_seg/mIoU")
_METRICS = {
    "PanopticSegmentor": _PANOPTIC,
    "PanopticFPN": _PANOPTIC,
    "OCRSemanticSegmentor": ("sem_seg/mIoU", "sem_seg/pACC", "sem_seg/fwIoU"),
}


def comparison(config: Path, overrides: Mapping[str, Any], seeds: Sequence[int]) -> Study:
    """
    Return a study that compares a config's head, "ours", with three standard heads.

    The standard heads are "plain" (no context), "PPM", and "OCR" as published (without
    MODEL.OCR.RESIDUAL). All heads have the same losses, schedule and features: if "ours" is
    a residual OCR head, the standard heads read all features that its coarse and refined branches
    read. A standard head that equals "ours" is left out.
    """
    cfg = load_config(str(config), overrides)
    architecture = cfg.MODEL.META_ARCHITECTURE
    if architecture not in _METRICS:
        raise UserError(
            f"MODEL.META_ARCHITECTURE is {architecture}; expected {' or '.join(_METRICS)}, whose "
            "heads can be compared."
        )
    head = cfg.MODEL.SEM_SEG_HEAD
    published = {"MODEL.OCR.RESIDUAL": "False", "MODEL.OCR.COARSE_START": "pytorch"}
    if PANOPTIC.holds(cfg):
        published["MODEL.SEM_SEG_HEAD.NAME"] = "OCRSemSegFPNHead"
    elif head.NAME == "ContextSemSegHead" and cfg.MODEL.OCR.RESIDUAL:
        both = dict.fromkeys([*head.IN_FEATURES, *head.COARSE_IN_FEATURES])
        published["MODEL.SEM_SEG_HEAD.IN_FEATURES"] = str([*both])
    systems = {}
    for name, scheme in STANDARD.items():
        own = {**overrides, "MODEL.CONTEXT.NAME": scheme, **published}
        if name == "OCR" and not cfg.MODEL.OCR.COARSE_LOSS_WEIGHT:  # published OCR has this loss
            own["MODEL.OCR.COARSE_LOSS_WEIGHT"] = "0.4"
        other = load_config(str(config), own)
        if other != cfg:
            systems[name] = System(
                config, _words({**own, **defaults_of_unread(other)}), tuple(seeds)
            )
    systems[OURS] = System(config, _words(overrides), tuple(seeds))
    return Study(systems, _METRICS[architecture])


def _words(overrides: Mapping[str, Any]) -> tuple[str, ...]:
    """Return overrides as the words KEY VALUE ... of a command."""
    return tuple(str(word) for item in overrides.items() for word in item)


def comparison_report(study: Study, records: Records) -> str:
    """
    Return a text with two Markdown tables, for the heads and for the classes.

    The row of a head has the head's metrics, the gain of "ours" over this head, and the cost of a
    run. The row of a class has the gain of "ours" over each head.
    """
    metric = study.metrics[0]
    over = gains_of_ours(records, [run["metrics"].get(metric) for run in records])
    heads = []
    for name in study.systems:
        runs = [run for run in records if run["system"] == name]
        cells = {"head": name, "runs": len(runs)}
        for m in study.metrics:
            values = [run["metrics"][m] for run in runs if run["metrics"].get(m) is not None]
            mean = statistics.fmean(values) if values else None
            cells[m] = plus_minus(mean, statistics.stdev(values) if len(values) > 1 else None)
        cells[f"{metric.partition('/')[2]} gain of ours"] = gain_text(over.get(name))
        if runs:
            cells["parameters (M)"] = f"{runs[0]['parameters'] / 1e6:.2f}"
            cells["CPU s a run"] = f"{statistics.fmean(run['cpu_seconds'] for run in runs):.0f}"
            memory = max(run["peak_memory_bytes"] for run in runs)
            cells["peak memory (MiB)"] = f"{memory / 2**20:.0f}"
        heads.append(cells)
    names = dict.fromkeys(name for run in records for name in class_values(run, metric))
    classes = []
    for c in names:
        of_class = gains_of_ours(records, [class_values(run, metric).get(c) for run in records])
        gains = {name: gain_text(of_class.get(name)) for name in over}
        classes.append({"gain of ours, by class": c, **gains})
    note = (
        "Differences are paired by seed, with their 95 % confidence interval (Student's t) in "
        "brackets; those in bold exclude 0. About one in 20 intervals misses the true value."
    )
    return "\n\n".join([markdown(heads), *([markdown(classes)] if over else []), note]) + "\n"


def verdict(study: Study, records: Records) -> str:
    """
    Return a text that compares "ours" with every other head, in one line for each metric.

    For each head, the line has the mean difference, its 95 % confidence interval, and a verdict:
    "better" or "worse" if the interval excludes 0, "level" if the whole interval is within LEVEL
    points of 0, else "undecided".
    """
    lines = []
    for metric in study.metrics:
        parts = []
        values = [run["metrics"].get(metric) for run in records]
        for name, i in gains_of_ours(records, values).items():
            judged = "(no interval for one seed)" if i.half is None else f"{i.ends} {_word(i)}"
            parts.append(f"{name} {i.mean:+.2f} {judged}")
        if parts:
            lines.append(f"{metric}, ours against {', '.join(parts)}")
    return "\n".join(lines)


def _word(interval: Interval) -> str:
    if interval.excludes_zero:
        return "better" if interval.mean > 0 else "worse"
    is_level = interval.half is not None and abs(interval.mean) + interval.half <= LEVEL
    return "level" if is_level else "undecided (more seeds needed)"


def gains_of_ours(records: Records, values: Sequence[float | None]) -> dict[str, Interval]:
    """
    Return the confidence interval of the mean gain of "ours" over every other head.

    Runs with equal seeds are compared; a seed counts if both heads have a value. ``values`` has one
    metric's value for each record; None for a record without the metric.
    """
    by_run = {(r["system"], r["seed"]): value for r, value in zip(records, values, strict=True)}
    differences: dict[str, list[float]] = {}
    for (name, seed), other in by_run.items():
        own = by_run.get((OURS, seed))
        if name != OURS and own is not None and other is not None:
            differences.setdefault(name, []).append(own - other)
    return {name: Interval.of(found) for name, found in differences.items()}


def class_values(record: Mapping[str, Any], metric: str) -> dict[str, float | None]:
    """Return each class's IoU, PQ or AP in a run, whichever fits the task of ``metric``."""
    task = metric.partition("/")[0]
    name = next((m.name for m in class_metrics() if m.task == task), "")
    return of_classes(record["metrics"], f"{task}/{name}")


def plus_minus(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return ""
    return f"{mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def markdown(table: Sequence[Mapping[str, Any]]) -> str:
    return tabulate(table, headers="keys", tablefmt="github", disable_numparse=True)
