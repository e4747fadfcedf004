"""The first lines of a training."""

from collections.abc import Iterable
from typing import Any

from detectron2.config import CfgNode
from detectron2.utils import comm
from tabulate import tabulate
from torch import nn

from ocr_panoptic.checkpoint import SafeCheckpointer
from ocr_panoptic.console import LOG_FILE
from ocr_panoptic.data.training_stream import TrainingStream

from .run_info import machine_name
from .task import task_of


def start_summary(
    cfg: CfgNode,
    checkpointer: SafeCheckpointer,
    data_loader: Iterable[Any],
    start: int,
) -> str:
    """
    Args:
        cfg: of the run, scaled to its processes.
        checkpointer: that has loaded the weights.
        data_loader: of the training.
        start: the first iteration.

    Returns:
        a table of less than 20 lines
    """
    images = len(data_loader.examples.records) if isinstance(data_loader, TrainingStream) else None
    weights, *parts = checkpointer.summary().splitlines()
    rows = [
        ("data", _data(cfg, images)),
        ("model", _model(cfg, checkpointer.model)),
        ("weights", weights),
        ("schedule", _schedule(cfg, start, images)),
        ("", _rates(cfg)),
        ("checkpoints", _periods(cfg)),
        ("device", _device(cfg)),
        ("output", f"{cfg.OUTPUT_DIR}; all else that is to be said is in its {LOG_FILE}"),
    ]
    title = f"Training starts at iteration {start} of {cfg.SOLVER.MAX_ITER}"
    table = tabulate(rows, tablefmt="plain", disable_numparse=True)
    return "\n".join([title, table, *parts])


def _data(cfg: CfgNode, images: int | None) -> str:
    count = "" if images is None else f" ({images} images)"
    trained, tested = (
        ", ".join(names) or "nothing" for names in (cfg.DATASETS.TRAIN, cfg.DATASETS.TEST)
    )
    return f"{trained}{count}, evaluated on {tested}; {task_of(cfg).classes(cfg)}"


def _model(cfg: CfgNode, model: nn.Module) -> str:
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    total, trained = sum(n for n, _ in sizes), sum(n for n, learns in sizes if learns)
    head = cfg.MODEL.SEM_SEG_HEAD.NAME
    context = "" if head in ("SemSegFPNHead", "SegFixHead") else f" with {cfg.MODEL.CONTEXT.NAME}"
    return (
        f"{cfg.MODEL.META_ARCHITECTURE}: {cfg.MODEL.BACKBONE.NAME}, {head}{context}; "
        f"{total / 1e6:.1f} M parameters, {trained / 1e6:.1f} M of them trained"
    )


def _schedule(cfg: CfgNode, start: int, images: int | None) -> str:
    solver = cfg.SOLVER
    parts = f" in {solver.ACCUMULATION_STEPS} parts" if solver.ACCUMULATION_STEPS > 1 else ""
    text = f"{solver.MAX_ITER - start} iterations of {solver.IMS_PER_BATCH} images{parts}"
    if images:
        epochs = (solver.MAX_ITER - start) * solver.IMS_PER_BATCH / images
        text += f", {epochs:.1f} epochs" if epochs >= 0.1 else f", {epochs:.1g} epochs"
    return text


def _rates(cfg: CfgNode) -> str:
    solver = cfg.SOLVER
    text = f"{solver.OPTIMIZER}, learning rate {solver.BASE_LR:g}, {solver.LR_SCHEDULER_NAME}"
    if solver.LR_SCHEDULER_NAME == "WarmupMultiStepLR":
        steps = [step for step in solver.STEPS if step < solver.MAX_ITER]
        text += f" times {solver.GAMMA:g} at {', '.join(map(str, steps))}" if steps else ""
    text += f", {solver.WARMUP_ITERS} iterations of warm-up"
    if cfg.MODEL.EMA.ENABLED:
        text += f"; evaluated and saved is the average of the weights (EMA {cfg.MODEL.EMA.DECAY:g})"
    return text


def _periods(cfg: CfgNode) -> str:
    def when(period: int) -> str:
        return f"every {period} iterations and at the end" if period else "at the end"

    evaluated = f"; evaluation {when(cfg.TEST.EVAL_PERIOD)}" if cfg.DATASETS.TEST else ""
    return f"{when(cfg.SOLVER.CHECKPOINT_PERIOD)}{evaluated}"


def _device(cfg: CfgNode) -> str:
    name, processes = machine_name(cfg.MODEL.DEVICE), comm.get_world_size()
    count = f"{processes} processes on " if processes > 1 else ""
    precision = (
        f"mixed precision ({cfg.SOLVER.AMP.PRECISION})" if cfg.SOLVER.AMP.ENABLED else "float32"
    )
    return f"{count}{cfg.MODEL.DEVICE} ({name}), {precision}"
