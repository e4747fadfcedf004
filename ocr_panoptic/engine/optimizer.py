"""SGD with a learning rate of its own for everything outside the backbone."""

import torch
from detectron2.config import CfgNode
from detectron2.solver import get_default_optimizer_params
from detectron2.solver.build import maybe_add_gradient_clipping
from torch import nn


def build_optimizer(cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
    """
    Detectron2's SGD, with SOLVER.HEAD_LR_FACTOR: parameters whose name does not begin with
    ``backbone.`` learn at that multiple of SOLVER.BASE_LR.

    Raises:
        ValueError: for a factor that is not above 0.
    """
    solver = cfg.SOLVER
    if not solver.HEAD_LR_FACTOR > 0:
        raise ValueError(
            f"SOLVER.HEAD_LR_FACTOR is {solver.HEAD_LR_FACTOR}; it is a number above 0, and 1.0 "
            "trains all parts at SOLVER.BASE_LR."
        )

    def factor(name: str) -> float:
        head = 1.0 if name.startswith("backbone.") else solver.HEAD_LR_FACTOR
        # Not by Detectron2's argument, which would put aside the factor of the head's biases.
        return head * (solver.BIAS_LR_FACTOR if name.endswith(".bias") else 1.0)

    groups = get_default_optimizer_params(
        model,
        base_lr=solver.BASE_LR,
        weight_decay_norm=solver.WEIGHT_DECAY_NORM,
        weight_decay_bias=solver.WEIGHT_DECAY_BIAS,
        lr_factor_func=factor,
    )
    optimizer = torch.optim.SGD(
        groups,
        lr=solver.BASE_LR,
        momentum=solver.MOMENTUM,
        nesterov=solver.NESTEROV,
        weight_decay=solver.WEIGHT_DECAY,
        foreach=True,
    )
    return maybe_add_gradient_clipping(cfg, optimizer)
