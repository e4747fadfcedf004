"""The schedule of a training, which follows from the data, its length and the processes."""

import math

from detectron2.config import CfgNode
from detectron2.engine import DefaultTrainer

from ocr_panoptic.data.training_stream import training_records
from ocr_panoptic.errors import UserError


def complete_schedule(cfg: CfgNode) -> list[str]:
    """
    Fill in what follows from the number of training images, and from SOLVER.MAX_ITER: MAX_ITER 0
    from SOLVER.EPOCHS (the warm-up is then at most a tenth of it), SOLVER.STEPS that are shares of
    it, and TEST.EVAL_PERIOD 0 from TEST.EVALUATIONS. Changes ``cfg``, whose data are registered.

    Returns:
        what is allowed but seldom meant, a sentence each.
    """
    solver = cfg.SOLVER
    given = solver.MAX_ITER
    if given == 0 or solver.EPOCHS:
        if not solver.EPOCHS:
            raise UserError(
                "SOLVER.MAX_ITER is 0, which SOLVER.EPOCHS would give, and that is 0, too: set one "
                "of them."
            )
        images = len(training_records(cfg))
        by_epochs = math.ceil(solver.EPOCHS * images / solver.IMS_PER_BATCH)
    if given == 0:
        solver.MAX_ITER = by_epochs
        solver.WARMUP_ITERS = min(solver.WARMUP_ITERS, solver.MAX_ITER // 10)
    solver.STEPS = tuple(
        round(step * solver.MAX_ITER) if isinstance(step, float) else step for step in solver.STEPS
    )
    if cfg.TEST.EVALUATIONS and not cfg.TEST.EVAL_PERIOD:
        cfg.TEST.EVAL_PERIOD = math.ceil(solver.MAX_ITER / cfg.TEST.EVALUATIONS)
    warnings = []
    if given and solver.EPOCHS and given != by_epochs:
        warnings.append(
            f"SOLVER.MAX_ITER {given} is trained, and not the {by_epochs} iterations of "
            f"SOLVER.EPOCHS {solver.EPOCHS:g}, which needs SOLVER.MAX_ITER 0."
        )
    if solver.WARMUP_ITERS >= solver.MAX_ITER > 0:
        warnings.append(
            f"SOLVER.WARMUP_ITERS is {solver.WARMUP_ITERS} and SOLVER.MAX_ITER {solver.MAX_ITER}: "
            "the learning rate never reaches SOLVER.BASE_LR. Set WARMUP_ITERS to a tenth of "
            "MAX_ITER."
        )
    return warnings


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
