"""SGD and AdamW, with learning rates of heads and layers; clipping of gradients; schedules."""

import logging
from collections.abc import Callable

import torch
from detectron2.config import CfgNode
from detectron2.projects.deeplab import build_lr_scheduler
from detectron2.solver import LRScheduler, get_default_optimizer_params
from detectron2.solver.build import reduce_param_groups
from torch import nn

# SOLVER.OPTIMIZER -> what it keeps of each parameter, in tensors of its shape.
MOMENTA = {"SGD": {"momentum_buffer"}, "AdamW": {"exp_avg", "exp_avg_sq"}}


def build_optimizer(cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
    """
    Build SOLVER.OPTIMIZER, with the learning rates of SOLVER.HEAD_LR_FACTOR (parameters outside
    ``backbone.``) and SOLVER.LAYER_DECAY (layers of a network of timm), and with AdamW without
    weight decay where timm has none, see docs/keys.md. With SGD weight decay is Detectron2's.

    It does not clip gradients, see :func:`build_clipping`.
    """
    solver = cfg.SOLVER
    asks_timm = solver.LAYER_DECAY != 1 or solver.OPTIMIZER == "AdamW"
    of_timm = {}  # name of a parameter -> how TimmBackbone has it trained
    for prefix, module in model.named_modules() if asks_timm else ():
        if hasattr(module, "training_of_parameters"):
            training = module.training_of_parameters(solver.LAYER_DECAY)
            of_timm |= {f"{prefix}.{name}": how for name, how in training.items()}

    def factor(name: str) -> float:
        part = 1.0 if name.startswith("backbone.") else solver.HEAD_LR_FACTOR
        if name in of_timm:
            part *= of_timm[name].lr_factor
        # Not by Detectron2's argument, which would put aside the factors of heads and layers.
        return part * (solver.BIAS_LR_FACTOR if name.endswith(".bias") else 1.0)

    groups = get_default_optimizer_params(
        model,
        base_lr=solver.BASE_LR,
        weight_decay_norm=solver.WEIGHT_DECAY_NORM,
        weight_decay_bias=solver.WEIGHT_DECAY_BIAS,
        lr_factor_func=factor,
    )
    # Elsewhere a fused step would change the last bits of a run, for little.
    way = {"fused": True} if next(model.parameters()).is_cuda else {"foreach": True}
    if solver.OPTIMIZER == "AdamW":
        exempt = [
            parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
            and (parameter.ndim <= 1 or (name in of_timm and not of_timm[name].decays))
            and (solver.WEIGHT_DECAY_BIAS is None or not name.endswith(".bias"))
        ]
        # What comes later overwrites what comes before.
        groups += [{"params": exempt, "weight_decay": solver.WEIGHT_DECAY_NORM}]
        return torch.optim.AdamW(
            reduce_param_groups(groups),
            lr=solver.BASE_LR,
            weight_decay=solver.WEIGHT_DECAY,
            **way,
        )
    return torch.optim.SGD(
        groups,
        lr=solver.BASE_LR,
        momentum=solver.MOMENTUM,
        nesterov=solver.NESTEROV,
        weight_decay=solver.WEIGHT_DECAY,
        **way,
    )


def build_clipping(cfg: CfgNode, optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """
    Return a function that clips gradients as SOLVER.CLIP_GRADIENTS says, each parameter's by its
    own norm, or each value; None where nothing is clipped.

    It is called between the backward pass and the step, with gradients that are not scaled.
    Detectron2 clips within the optimizer's step, to which a fused optimizer comes with the scaled
    gradients of float16.
    """
    settings = cfg.SOLVER.CLIP_GRADIENTS
    if not settings.ENABLED:
        return None
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if settings.CLIP_TYPE == "value":
        return lambda: torch.nn.utils.clip_grad_value_(parameters, settings.CLIP_VALUE)

    @torch.no_grad()
    def clip() -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients, settings.NORM_TYPE))
        factors = (settings.CLIP_VALUE / (norms + 1e-6)).clamp(max=1)
        torch._foreach_mul_(gradients, list(factors))

    return clip


def prepare_state(optimizer: torch.optim.Optimizer) -> None:
    """
    Make momenta, new or loaded ones, what a fused step needs:

    - in the memory layout of their parameters, since it reads both in the order of memory;
    - with SGD, present: momenta that it makes itself stay unset where an infinite gradient of
      float16 skips the first step, and the second step would read them.
    """
    for group in optimizer.param_groups:
        is_unset = group.get("fused") and group.get("momentum")
        for parameter in group["params"] if is_unset else ():
            if optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            is_momentum = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if is_momentum and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def build_schedule(cfg: CfgNode, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Build SOLVER.LR_SCHEDULER_NAME, of Detectron2 or its DeepLab project (the poly schedule)."""
    solver = cfg.SOLVER
    steps = tuple(step for step in solver.STEPS if step < solver.MAX_ITER)
    if solver.LR_SCHEDULER_NAME == "WarmupMultiStepLR" and steps != tuple(solver.STEPS):
        logging.getLogger(__name__).warning(
            "SOLVER.STEPS is %s: those from SOLVER.MAX_ITER %d on have no effect",
            tuple(solver.STEPS),
            solver.MAX_ITER,
        )
        cfg = cfg.clone()
        cfg.defrost()
        cfg.SOLVER.STEPS = steps  # Detectron2 fails where one of them is MAX_ITER
    return build_lr_scheduler(cfg, optimizer)
