"""Batch and schedule that follow the number of processes."""

from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer

from ocr_panoptic.errors import UserError


def scaled(cfg: CfgNode, processes: int) -> CfgNode:
    """
    Batch and schedule for a number of processes, from SOLVER.REFERENCE_WORLD_SIZE.

    Raises:
        ValueError: the processes of the reference do not divide its batch.
    """
    reference = cfg.SOLVER.REFERENCE_WORLD_SIZE
    if reference and cfg.SOLVER.IMS_PER_BATCH % reference:
        raise UserError(
            f"SOLVER.IMS_PER_BATCH is {cfg.SOLVER.IMS_PER_BATCH}, which the "
            f"{reference} processes of SOLVER.REFERENCE_WORLD_SIZE do not divide."
        )
    return DefaultTrainer.auto_scale_workers(cfg, processes)
