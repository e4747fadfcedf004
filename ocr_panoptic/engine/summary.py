"""The first lines of a training."""

from collections.abc import Iterable
from typing import Any

from detectron2.config import CfgNode
from detectron2.utils import comm

from ocr_panoptic.checkpoint.checkpointer import SafeCheckpointer
from ocr_panoptic.data.training_stream import TrainingStream

from .run_info import machine_name
from .task import task_of


def start_summary(
    cfg: CfgNode, checkpointer: SafeCheckpointer, data_loader: Iterable[Any], start: int
) -> str:
    """
    Return data, model, weights, schedule and device of a training, a line each.

    Args:
        cfg: config of the run, scaled to its processes.
        start: the first iteration.
    """
    solver, head, model = cfg.SOLVER, cfg.MODEL.SEM_SEG_HEAD.NAME, checkpointer.model
    images = len(data_loader.examples.records) if isinstance(data_loader, TrainingStream) else 0
    epochs = (solver.MAX_ITER - start) * solver.IMS_PER_BATCH / max(1, images)
    context = "" if head in ("SemSegFPNHead", "SegFixHead") else f" with {cfg.MODEL.CONTEXT.NAME}"
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return f"""Training starts at iteration {start} of {solver.MAX_ITER}
data      {", ".join(cfg.DATASETS.TRAIN)} ({images} images), evaluated on \
{", ".join(cfg.DATASETS.TEST) or "nothing"}; {task_of(cfg).classes(cfg)}
model     {cfg.MODEL.META_ARCHITECTURE}: {cfg.MODEL.BACKBONE.NAME}, {head}{context}; \
{trained / 1e6:.1f} M trained parameters
weights   {checkpointer.summary()}
schedule  {solver.MAX_ITER - start} iterations of {solver.IMS_PER_BATCH} images, {epochs:.1f} \
epochs; {solver.OPTIMIZER}, learning rate {solver.BASE_LR:g}, {solver.LR_SCHEDULER_NAME}
device    {cfg.MODEL.DEVICE} ({machine_name(cfg.MODEL.DEVICE)}), {comm.get_world_size()} process(es)
output    {cfg.OUTPUT_DIR}"""
