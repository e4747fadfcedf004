"""Checks of a training run: a short one at each start, and a full one that trains nothing."""

import copy
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from detectron2.utils import comm
from tabulate import tabulate
from torch import nn

from ocr_panoptic.checkpoint.checkpointer import last_checkpoint
from ocr_panoptic.checkpoint.reading import fetch_weights
from ocr_panoptic.data.data_check import DataSummary, SplitSummary, check_data_sets
from ocr_panoptic.data.training_stream import training_records
from ocr_panoptic.errors import UserError
from ocr_panoptic.metrics import METRICS
from ocr_panoptic.modeling.build import build_network

from .identity import check_classes_of, check_settings_of, read_identity
from .resume import Resume, check_trained_weights, find_checkpoint, position_after, saved_state
from .task import task_of
from .trainer import Trainer
from .training import scaled_to_processes

# Errors raised for bad data and checkpoints, also by Detectron2.
ERRORS = (OSError, ValueError, KeyError, AssertionError)


@dataclass
class RunCheck:
    """
    The result of :func:`check_run`.

    Attributes:
        tables: title -> rows of cells; the first row has the headers.
        faults: sentences about everything that would stop the run.
        warnings: sentences about settings that are allowed but seldom intended.
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


def check_run(cfg: CfgNode, *, resume: Resume = False) -> RunCheck:
    """
    Check a training run.

    Args:
        cfg: completed config with batch and schedule scaled to the number of processes.
        resume: value of ``--resume``.
    """
    check = RunCheck()
    check.tables["Data"] = _data(cfg, check)
    with torch.device("meta"):  # shapes without values
        check.tables["Learning rates"] = _learning_rates(cfg, build_network(cfg).train())
    file, weights = "", cfg.MODEL.WEIGHTS
    try:
        file = find_checkpoint(cfg.OUTPUT_DIR, resume)
        if file or "://" not in weights:
            _check_weights(cfg, file, training=True)
    except ERRORS as e:
        check.faults.append(str(e))
    found = last_checkpoint(cfg.OUTPUT_DIR) or "nothing: there is no checkpoint"
    check.tables["Start"] = [
        ["", ""],
        ["starts from", file or weights or "random weights"],
        ["--resume finds", found],
    ]
    return check


def check_start(cfg: CfgNode, resume: Resume, *, training: bool) -> None:
    """
    Check schedule, weights and data of a run before anything is built; log warnings about the data.

    Args:
        cfg: completed config, not scaled to the number of processes.
        resume: value of ``--resume``.
        training: whether DATASETS.TRAIN is used.
    """
    if training:
        check_solver(scaled_to_processes(cfg, comm.get_world_size()), comm.get_world_size())
    _check_weights(cfg, find_checkpoint(cfg.OUTPUT_DIR, resume), training=training)
    names = *(cfg.DATASETS.TRAIN if training else ()), *cfg.DATASETS.TEST
    for text in data_warnings(cfg, check_data_sets(names)):
        logging.getLogger(__name__).warning(text)


def _check_weights(cfg: CfgNode, checkpoint: str, *, training: bool) -> None:
    if not training:
        check_trained_weights(cfg.MODEL.WEIGHTS)
    elif checkpoint:
        identity = read_identity(checkpoint, trust_pickle=cfg.MODEL.TRUST_PICKLE)
        check_settings_of(identity, cfg)
        check_classes_of(identity, cfg.DATASETS.TRAIN)
        state = saved_state(checkpoint, trust_pickle=cfg.MODEL.TRUST_PICKLE)
        position_after(scaled_to_processes(cfg, comm.get_world_size()), state)
    else:
        fetch_weights(cfg.MODEL.WEIGHTS)


def check_solver(cfg: CfgNode, processes: int) -> None:
    """
    Check the settings that only training needs: batch and evaluations.

    Args:
        cfg: config with its device, scaled to the number of processes
            (SOLVER.REFERENCE_WORLD_SIZE).
        processes: number of processes of the run.
    """
    batch, steps = cfg.SOLVER.IMS_PER_BATCH, cfg.SOLVER.ACCUMULATION_STEPS
    if steps < 1 or batch < 1 or batch % (processes * steps):
        raise UserError(
            f"SOLVER.IMS_PER_BATCH is {batch}, which {processes} process(es) times "
            f"SOLVER.ACCUMULATION_STEPS {steps} do not divide. Each part of a batch needs the "
            "same number of images, at least 1."
        )
    if cfg.TEST.BEST_CHECKPOINT:
        _check_best_metric(cfg)
    if cfg.TEST.PATIENCE and not cfg.TEST.EVAL_PERIOD:
        raise UserError(
            f"TEST.PATIENCE is {cfg.TEST.PATIENCE}, in evaluations during the training, which has "
            "none: set TEST.EVAL_PERIOD, or TEST.EVALUATIONS."
        )


def _check_best_metric(cfg: CfgNode) -> None:
    """Refuse a TEST.BEST_CHECKPOINT that no evaluation returns, or that improves downwards."""
    best, data = cfg.TEST.BEST_CHECKPOINT, cfg.DATASETS.TEST
    *dataset, task, name = ["", *best.split("/")][-3 if len(data) > 1 else -2 :]
    names = {metric.name: metric.lower_is_better for metric in METRICS if metric.task == task}
    misspelt = name not in names and name.lower() in {known.lower() for known in names}
    is_known = data and names and not misspelt and (not dataset or dataset[0] in data)
    if not is_known or names.get(name):
        form = f"{data[0]}/panoptic_seg/PQ" if len(data) > 1 else "panoptic_seg/PQ"
        raise UserError(
            f"TEST.BEST_CHECKPOINT is {best}, which no evaluation on DATASETS.TEST {data} has, or "
            f"which is better when lower. It is of the form {form}, or sem_seg/mIoU, bbox/AP, "
            f"segm/AP; {task} has {', '.join(sorted(names)) or 'no metrics'}."
        )


def data_warnings(cfg: CfgNode, found: DataSummary) -> list[str]:
    """Return warnings about data sets without faults."""
    finds_things = cfg.MODEL.META_ARCHITECTURE == "PanopticFPN"
    return found.warnings_for(cfg.TEST.DETECTIONS_PER_IMAGE if finds_things else math.inf)


def _data(cfg: CfgNode, check: RunCheck) -> list[list]:
    rows: list[list] = [["", "data", "images", ""]]
    found: list[SplitSummary] = []

    def add(names: tuple[str, ...], load: Callable[[], list[dict]], is_train: bool) -> None:
        count = 0
        try:
            found.extend(check_data_sets(names).splits)
            records = load()
            task_of(cfg).mapper(cfg, is_train)(copy.deepcopy(records[0]))
            count = len(records)
        except ERRORS as e:
            check.faults.append(f"{', '.join(names)}: {e}")
        seen = cfg.SOLVER.MAX_ITER * cfg.SOLVER.IMS_PER_BATCH
        plan = f"every {cfg.TEST.EVAL_PERIOD or cfg.SOLVER.MAX_ITER} iterations"
        if is_train:
            plan = f"{cfg.SOLVER.MAX_ITER} iterations of {cfg.SOLVER.IMS_PER_BATCH} images"
            plan += f": {seen / count:.1f} epochs" if count else ""
        title = "training" if is_train else "evaluation"
        rows.append([title, ", ".join(names), count or "not found", plan])

    add(cfg.DATASETS.TRAIN, lambda: training_records(cfg), True)
    for name in cfg.DATASETS.TEST:
        add((name,), partial(DatasetCatalog.get, name), False)
    check.warnings += data_warnings(cfg, DataSummary(tuple(found)))
    return rows


def _learning_rates(cfg: CfgNode, model: nn.Module) -> list[list]:
    names = {id(p): name for name, p in model.named_parameters()}
    optimizer = Trainer.build_optimizer(cfg, model)
    scheduler = Trainer.build_lr_scheduler(cfg, optimizer)
    first = scheduler.get_last_lr()
    scheduler.last_epoch = cfg.SOLVER.MAX_ITER - 1
    last = scheduler.get_lr()
    counts: Counter[tuple] = Counter()
    for i, group in enumerate(optimizer.param_groups):
        rates = [f"{rate:.3g}" for rate in (first[i], scheduler.base_lrs[i], last[i])]
        for p in group["params"]:
            part = names[id(p)].partition(".")[0]
            row = part, *rates, group["weight_decay"]
            counts[row] += p.numel()
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    return [
        ["of", "parameters", "first rate", "base rate", "last rate", "weight decay"],
        *([part, f"{count:,}", *values] for (part, *values), count in counts.items()),
        ["frozen", f"{frozen:,}", "", "", "", ""],
        ["all", f"{frozen + counts.total():,}", "", "", "", ""],
    ]
