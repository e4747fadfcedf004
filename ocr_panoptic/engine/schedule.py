"""The schedule of a training, as its config writes it relative to the data or to its length."""

import math

from detectron2.config import CfgNode

from ocr_panoptic.errors import UserError

from .task import training_records


def complete_schedule(cfg: CfgNode) -> None:
    """
    Fill in what follows from the number of training images, and from SOLVER.MAX_ITER: MAX_ITER 0
    from SOLVER.EPOCHS (the warm-up is then at most a tenth of it), SOLVER.STEPS that are shares of
    it, and TEST.EVAL_PERIOD 0 from TEST.EVALUATIONS. Changes ``cfg``, whose data are registered.

    Raises:
        ValueError: nothing gives the number of iterations.
    """
    solver = cfg.SOLVER
    if solver.MAX_ITER == 0:
        if not solver.EPOCHS:
            raise UserError(
                "SOLVER.MAX_ITER is 0, which SOLVER.EPOCHS would give, and that is 0, too: set one "
                "of them."
            )
        images = len(training_records(cfg))
        solver.MAX_ITER = math.ceil(solver.EPOCHS * images / solver.IMS_PER_BATCH)
        solver.WARMUP_ITERS = min(solver.WARMUP_ITERS, solver.MAX_ITER // 10)
    solver.STEPS = tuple(
        round(step * solver.MAX_ITER) if isinstance(step, float) else step for step in solver.STEPS
    )
    if cfg.TEST.EVALUATIONS and not cfg.TEST.EVAL_PERIOD:
        cfg.TEST.EVAL_PERIOD = math.ceil(solver.MAX_ITER / cfg.TEST.EVALUATIONS)
