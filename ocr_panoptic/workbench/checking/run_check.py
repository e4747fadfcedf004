"""Check a training run before it starts; ``ocr-panoptic check`` prints the findings."""

import copy
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from detectron2.engine import DefaultTrainer
from detectron2.modeling import META_ARCH_REGISTRY
from tabulate import tabulate

from ocr_panoptic.checkpoint.checkpointer import last_checkpoint
from ocr_panoptic.checkpoint.start import Resume, Start, find_start
from ocr_panoptic.config.keys import PANOPTIC
from ocr_panoptic.data.data_check import DataSummary, SplitSummary, check_data_sets
from ocr_panoptic.data.training_stream import training_records
from ocr_panoptic.engine.optimizer import build_optimizer, build_schedule
from ocr_panoptic.engine.resume import position_after
from ocr_panoptic.engine.setup import check_is_new, rank_of_process
from ocr_panoptic.errors import UserError
from ocr_panoptic.metrics import METRICS
from ocr_panoptic.predict.identity import check_classes_of, check_settings_of
from ocr_panoptic.predict.task import refiner_configs, task_of
from ocr_panoptic.predict.trained_model import check_inference_keys, check_trained_weights

# Errors that this package and Detectron2 raise about bad data and checkpoints.
ERRORS = (OSError, ValueError, KeyError, AssertionError)


@dataclass
class RunCheck:
    """
    The findings of a check of a training run.

    Attributes:
        tables: rows of each table, by table title; the first row has the column headings.
        faults: sentences about everything that would stop the run.
        warnings: sentences about data that are allowed but seldom intended.
    """

    tables: dict[str, list[list]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [
            f"{title}\n{tabulate(rows, headers='firstrow', disable_numparse=True)}"
            for title, rows in self.tables.items()
        ]
        parts += [f"Warning: {text}" for text in self.warnings]
        if self.faults:
            parts.append("The run would fail:\n  " + "\n  ".join(self.faults))
        return "\n\n".join(parts)


def check_run(
    cfg: CfgNode, *, processes: int = 1, resume: Resume = False, overwrite: bool = False
) -> RunCheck:
    """Check a training run with a completed config, without starting the run."""
    cfg = check_solver(cfg, processes)
    check = RunCheck()
    check.tables["Data"] = _data(cfg, check)
    with torch.device("meta"):  # tensors without values; only errors matter
        model = META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE)(cfg)
        build_schedule(cfg, build_optimizer(cfg, model))
    start = Start(cfg.MODEL.WEIGHTS)
    try:
        if not (resume or overwrite):
            check_is_new(cfg.OUTPUT_DIR)
        refiner_configs(cfg)
        if resume or "://" not in start.weights:  # otherwise the weights would be downloaded
            start = find_start(cfg, resume)
        _check_continuation(cfg, start)
    except ERRORS as e:
        check.faults.append(str(e))
    last = last_checkpoint(cfg.OUTPUT_DIR) or "no checkpoint"
    starts = ["starts from", start.weights or "random weights"]
    check.tables["Start"] = [["", ""], starts, ["--resume finds", last]]
    return check


def check_training(cfg: CfgNode, start: Start, processes: int) -> None:
    """Refuse a training with a completed config that would fail; log warnings about its data."""
    check_inference_keys(cfg)  # both would fail in the first evaluation, after hours
    refiner_configs(cfg)
    _check_continuation(check_solver(cfg, processes), start)
    _warn_about_data(cfg, (*cfg.DATASETS.TRAIN, *cfg.DATASETS.TEST))


def check_evaluation(cfg: CfgNode) -> None:
    """Refuse an evaluation without weights; log warnings about its data."""
    check_trained_weights(cfg.MODEL.WEIGHTS)
    _warn_about_data(cfg, cfg.DATASETS.TEST)


def _warn_about_data(cfg: CfgNode, names: Iterable[str]) -> None:
    """Check data sets in the main process, and log what is allowed but seldom intended."""
    if rank_of_process() == 0:
        for text in check_data_sets(names).warnings_for(_most_things(cfg)):
            logging.getLogger(__name__).warning(text)


def _check_continuation(cfg: CfgNode, start: Start) -> None:
    """Refuse to resume a training whose settings or classes are different."""
    if start.progress:
        check_settings_of(start, cfg)
        check_classes_of(start, cfg.DATASETS.TRAIN)
        position_after(cfg, start.progress)


def check_solver(cfg: CfgNode, processes: int) -> CfgNode:
    """Check batch size and evaluation keys; return the config after ``auto_scale_workers``."""
    reference = cfg.SOLVER.REFERENCE_WORLD_SIZE
    if reference and cfg.SOLVER.IMS_PER_BATCH % reference:
        raise UserError(
            f"SOLVER.IMS_PER_BATCH is {cfg.SOLVER.IMS_PER_BATCH}; expected a multiple of "
            f"SOLVER.REFERENCE_WORLD_SIZE ({reference} processes)."
        )
    cfg = DefaultTrainer.auto_scale_workers(cfg, processes)
    batch, steps = cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.ACCUMULATION_STEPS
    if steps < 1 or batch < 1 or batch % (processes * steps):
        raise UserError(
            f"SOLVER.IMS_PER_BATCH is {batch}; expected a positive multiple of {processes} x "
            f"{steps} (processes x SOLVER.ACCUMULATION_STEPS, both at least 1), so that each part "
            "of a batch has the same number of images."
        )
    if cfg.TEST.BEST_CHECKPOINT:
        _check_best_metric(cfg)
    if cfg.TEST.PATIENCE and not cfg.TEST.EVAL_PERIOD:
        raise UserError(
            f"TEST.PATIENCE is {cfg.TEST.PATIENCE}, but the training has no evaluations. Set "
            "TEST.EVAL_PERIOD or TEST.EVALUATIONS."
        )
    return cfg


def _check_best_metric(cfg: CfgNode) -> None:
    """Refuse a metric in TEST.BEST_CHECKPOINT that is unknown, or not better when higher."""
    best, data = cfg.TEST.BEST_CHECKPOINT, cfg.DATASETS.TEST
    *dataset, task, name = ["", *best.split("/")][-3 if len(data) > 1 else -2 :]
    metrics = {metric.name.lower(): metric for metric in METRICS if metric.task == task}
    similar = metrics.get(name.lower())  # None for a single class's metric, such as IoU-sky
    is_unusable = similar and (similar.name != name or not similar.higher_is_better)
    if is_unusable or not (data and metrics) or (dataset and dataset[0] not in data):
        of = f"{data[0]}/" if len(data) > 1 else ""
        raise UserError(
            f"TEST.BEST_CHECKPOINT is {best}; expected a metric that is measured on DATASETS.TEST "
            f"{data} and is better when higher, such as {of}panoptic_seg/PQ or {of}sem_seg/mIoU."
        )


def _most_things(cfg: CfgNode) -> float:
    is_panoptic = PANOPTIC.holds(cfg)
    return cfg.TEST.DETECTIONS_PER_IMAGE if is_panoptic else math.inf


def _data(cfg: CfgNode, check: RunCheck) -> list[list]:
    rows: list[list] = [["", "data", "images", ""]]
    found: list[SplitSummary] = []
    solver = cfg.SOLVER
    tests = [(name,) for name in cfg.DATASETS.TEST]
    for names, is_train in [(cfg.DATASETS.TRAIN, True), *((test, False) for test in tests)]:
        count = 0
        try:
            found += check_data_sets(names).splits
            records = training_records(cfg) if is_train else DatasetCatalog.get(*names)
            task_of(cfg).mapper(cfg, is_train)(copy.deepcopy(records[0]))
            count = len(records)
        except ERRORS as e:
            check.faults.append(f"{', '.join(names)}: {e}")
        plan = f"every {cfg.TEST.EVAL_PERIOD or solver.MAX_ITER} iterations"
        if is_train:
            plan = f"{solver.MAX_ITER} iterations of {solver.IMS_PER_BATCH} images"
            if count:
                plan += f": {solver.MAX_ITER * solver.IMS_PER_BATCH / count:.1f} epochs"
        title = "training" if is_train else "evaluation"
        rows.append([title, ", ".join(names), count or "cannot be used", plan])
    check.warnings += DataSummary(tuple(found)).warnings_for(_most_things(cfg))
    return rows
