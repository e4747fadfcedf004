"""
A training foreseen, without training: data, learning rates, parameters, checkpoints, and what
``--resume`` finds.
"""

import copy
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from detectron2.config import CfgNode
from detectron2.data import DatasetCatalog
from tabulate import tabulate
from torch import Tensor, nn

from ocr_panoptic.checkpoint import fetch_weights, last_checkpoint
from ocr_panoptic.data.data_check import check_data_sets
from ocr_panoptic.data.training_stream import training_records
from ocr_panoptic.engine.optimizer import MOMENTA
from ocr_panoptic.engine.resume import Resume, find_checkpoint, position_after, saved_state
from ocr_panoptic.engine.task import task_of
from ocr_panoptic.engine.trainer import Trainer
from ocr_panoptic.modeling.build import build_network

ERRORS = (
    OSError,
    ValueError,
    KeyError,
    AssertionError,
)  # of data and checkpoints, Detectron2's too


@dataclass
class RunCheck:
    """
    Attributes:
        tables: title -> rows of cells, the first of them the headers.
        faults: what would stop the run.
    """

    tables: dict[str, list[list]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [
            f"{title}\n{tabulate(rows, headers='firstrow', disable_numparse=True)}"
            for title, rows in self.tables.items()
        ]
        if self.faults:
            parts.append("The run would fail:\n  " + "\n  ".join(self.faults))
        return "\n\n".join(parts)


def check_run(cfg: CfgNode, *, resume: Resume = False) -> RunCheck:
    """
    Args:
        cfg: completed, with batch and schedule scaled to the number of processes.
        resume: the run is to be started with ``--resume``.
    """
    check = RunCheck()
    check.tables["Data"] = _data(cfg, check.faults)
    with torch.device("meta"):  # shapes without values
        model = build_network(cfg).train()
    optimizer = Trainer.build_optimizer(cfg, model)
    check.tables["Learning rates"] = _learning_rates(cfg, model, optimizer)
    check.tables["Checkpoints"] = _checkpoints(cfg, model, resume, check.faults)
    return check


def _data(cfg: CfgNode, faults: list[str]) -> list[list]:
    rows = [["", "data", "images", ""]]
    task, batch = task_of(cfg), cfg.SOLVER.IMS_PER_BATCH

    def read(names: tuple[str, ...], load: Callable[[], list[dict]], is_train: bool) -> int:
        try:
            check_data_sets(names, inputs=cfg.INPUT)
            records = load()
            task.mapper(cfg, is_train)(copy.deepcopy(records[0]))
            return len(records)
        except ERRORS as e:
            faults.append(f"{', '.join(names)}: {e}")
            return 0

    count = read(cfg.DATASETS.TRAIN, lambda: training_records(cfg), True)
    schedule = f"{cfg.SOLVER.MAX_ITER} iterations of {batch} images"
    if count:
        epochs = cfg.SOLVER.MAX_ITER * batch / count
        schedule += f": {epochs:.1f} epochs of {count / batch:.1f} iterations"
    rows.append(["training", ", ".join(cfg.DATASETS.TRAIN), count or "not found", schedule])
    for name in cfg.DATASETS.TEST:
        count = read((name,), lambda name=name: DatasetCatalog.get(name), False)
        period = cfg.TEST.EVAL_PERIOD
        when = f"every {period} iterations, and at the end" if period else "at the end"
        rows.append(["evaluation", name, count or "not found", when])
    return rows


def _learning_rates(cfg: CfgNode, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list]:
    names = {id(p): name for name, p in model.named_parameters()}
    scheduler = Trainer.build_lr_scheduler(cfg, optimizer)
    first = scheduler.get_last_lr()
    scheduler.last_epoch = cfg.SOLVER.MAX_ITER - 1
    last = scheduler.get_lr()
    counts: Counter[tuple] = Counter()
    for i, group in enumerate(optimizer.param_groups):
        rates = [f"{rate:.3g}" for rate in (first[i], scheduler.base_lrs[i], last[i])]
        for p in group["params"]:
            part = names[id(p)].partition(".")[0]
            counts[(part, *rates, group["weight_decay"])] += p.numel()
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    return [
        ["of", "parameters", "first rate", "base rate", "last rate", "weight decay"],
        *([part, f"{count:,}", *values] for (part, *values), count in counts.items()),
        ["frozen", f"{frozen:,}", "", "", "", ""],
        ["all", f"{frozen + counts.total():,}", "", "", "", ""],
    ]


def _checkpoints(cfg: CfgNode, model: nn.Module, resume: Resume, faults: list[str]) -> list[list]:
    folder, period = Path(cfg.OUTPUT_DIR), cfg.SOLVER.CHECKPOINT_PERIOD
    trained = sum(_bytes(p) for p in model.parameters() if p.requires_grad)
    weights = sum(_bytes(t) for t in model.state_dict().values())
    size = weights * (2 if cfg.MODEL.EMA.ENABLED else 1)
    size += trained * len(MOMENTA[cfg.SOLVER.OPTIMIZER])
    periods = [p for p in (period, cfg.TEST.EVAL_PERIOD) if p > 0]  # one before each evaluation
    written = len({i for p in periods for i in range(p, cfg.SOLVER.MAX_ITER, p)})
    kept = min(written, cfg.SOLVER.CHECKPOINTS_TO_KEEP or written)
    # model_final.pth, perhaps model_best.pth, and one that is being written.
    count = kept + 2 + bool(cfg.TEST.BEST_CHECKPOINT)
    exists = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(exists).free
    if count * size > free:
        faults.append(
            f"{count} checkpoints of {size / 2**20:,.0f} MiB need {count * size / 2**30:,.1f} GiB, "
            f"but {exists} has {free / 2**30:,.1f} GiB left: choose another OUTPUT_DIR, or a "
            "larger SOLVER.CHECKPOINT_PERIOD"
        )
    rows = [
        ["", ""],
        ["written", f"{written} in the training, of which {kept} are kept, and one at the end"],
        ["size", f"{size / 2**20:,.0f} MiB each, {count * size / 2**30:,.1f} GiB in all"],
        ["free", f"{free / 2**30:,.1f} GiB in {exists}"],
    ]
    last, found = last_checkpoint(folder), "nothing: there is no checkpoint"
    try:
        if last:
            found = f"{last}, which cannot be continued"
            state = saved_state(last, trust_pickle=cfg.MODEL.TRUST_PICKLE)
            position_after(cfg, state)
            found = f"{last}, at iteration {state['iteration'] + 1} of {cfg.SOLVER.MAX_ITER}"
    except ValueError as e:
        faults.extend([str(e)] if resume else [])
    try:
        if not find_checkpoint(cfg.OUTPUT_DIR, resume) and "://" not in cfg.MODEL.WEIGHTS:
            fetch_weights(cfg.MODEL.WEIGHTS)
    except FileNotFoundError as e:
        faults.append(str(e))
    start = cfg.MODEL.WEIGHTS or "random weights"
    rows.append(["starts from", last if resume and last else start])
    rows.append(["--resume finds", found])
    return rows


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
