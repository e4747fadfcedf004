"""A comparison of heads on a data set: the config's own against the usual ones, trained alike."""

from collections.abc import Sequence
from pathlib import Path

from ocr_panoptic.engine.config_checks import defaults_of_unread
from ocr_panoptic.engine.config_files import load_config
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import write_json, write_text

from .intervals import Interval
from .study import Study, System
from .study_tables import Records, study_curves, study_report, summarise

OURS = "ours"
_PUBLISHED = ("MODEL.OCR.RESIDUAL", "False", "MODEL.OCR.COARSE_START", "pytorch")
_SEMANTIC = {
    "plain": ("MODEL.CONTEXT.NAME", "none", *_PUBLISHED),
    "PPM": ("MODEL.CONTEXT.NAME", "PPM", *_PUBLISHED),
    "OCR": ("MODEL.CONTEXT.NAME", "OCR", *_PUBLISHED),
    OURS: (),
}
_CONTEXT_HEAD = ("MODEL.SEM_SEG_HEAD.NAME", "OCRSemSegFPNHead")
_PANOPTIC = {
    "plain": ("MODEL.SEM_SEG_HEAD.NAME", "SemSegFPNHead"),  # Panoptic-FPN: Detectron2's head
    "PPM": (*_CONTEXT_HEAD, *_SEMANTIC["PPM"]),
    "OCR": (*_CONTEXT_HEAD, *_SEMANTIC["OCR"]),
    OURS: (),
}
_METRICS = {
    "PanopticFPN": ("panoptic_seg/PQ", "panoptic_seg/PQ_th", "panoptic_seg/PQ_st", "sem_seg/mIoU"),
    "OCRSemanticSegmentor": ("sem_seg/mIoU", "sem_seg/pACC", "sem_seg/fwIoU"),
}


def comparison(config: Path, opts: Sequence[str], seeds: Sequence[int]) -> Study:
    """
    Return the study of a config's head, "ours", against "plain", "PPM" and "OCR" in its place, all
    else being equal, except for keys that they do not read, such as the losses of Panoptic-FPN's
    plain head, which has cross-entropy. PPM and OCR are as published, without MODEL.OCR.RESIDUAL.
    If "ours" is one of them, it is not trained a second time.
    """
    cfg = load_config(str(config), [*opts])
    architecture = cfg.MODEL.META_ARCHITECTURE
    if architecture not in _METRICS:
        raise UserError(
            f"MODEL.META_ARCHITECTURE is {architecture}; heads are compared in "
            f"{' and '.join(_METRICS)}."
        )
    heads = {}
    for name, own in (_PANOPTIC if architecture == "PanopticFPN" else _SEMANTIC).items():
        other = load_config(str(config), [*opts, *own])
        if name == OURS:
            heads[name] = (*opts,)
        elif other != cfg:
            heads[name] = (*opts, *own, *defaults_of_unread(other))
    baseline = "plain" if "plain" in heads else OURS
    systems = {name: System(config, keys, tuple(seeds), baseline) for name, keys in heads.items()}
    return Study(systems, _METRICS[architecture])


def write_comparison(study: Study, records: Records, output: Path) -> str:
    """Write tables.md, results.json and curves.png to a folder; return the tables."""
    report = study_report(summarise(study, records), study.metrics)
    write_text(output / "tables.md", report)
    write_json(output / "results.json", records, indent=1)
    study_curves(study, records).savefig(output / "curves.png", dpi=100)
    return report


def verdict(study: Study, records: Records) -> str:
    """
    Return a line for each metric that says how "ours" compares with each other head: the mean of
    the differences with equal seeds, its 95 % confidence interval, and whether it is better, worse
    or level.
    """
    values = {(run["system"], run["seed"]): run["metrics"] for run in records}
    lines = []
    for metric in study.metrics:
        parts = []
        for name in study.systems:
            pairs = [
                (values.get((OURS, seed), {}).get(metric), metrics.get(metric))
                for (system, seed), metrics in values.items()
                if system == name != OURS
            ]
            differences = [a - b for a, b in pairs if a is not None and b is not None]
            if not differences:
                continue
            interval = Interval.of(differences)
            word = "level"
            if interval.excludes_zero:
                word = "better" if interval.mean > 0 else "worse"
            said = "(one seed says nothing)" if interval.half is None else f"{interval.ends} {word}"
            parts.append(f"{name} {interval.mean:+.2f} {said}")
        if parts:
            lines.append(f"{metric}, ours against {', '.join(parts)}")
    return "\n".join(lines)
