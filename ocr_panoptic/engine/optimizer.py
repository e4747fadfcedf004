"""Build optimizers with separate learning rates for heads and layers; build LR schedules."""

from typing import TYPE_CHECKING, Any

import torch
from detectron2.config import CfgNode
from detectron2.projects.deeplab import build_lr_scheduler
from detectron2.solver import LRScheduler, get_default_optimizer_params
from detectron2.solver.build import maybe_add_gradient_clipping, reduce_param_groups
from torch import nn

if TYPE_CHECKING:
    from ocr_panoptic.modeling.timm_backbone import Training


def build_optimizer(
    cfg: CfgNode, model: nn.Module, *, own_step: bool = False
) -> torch.optim.Optimizer:
    """
    Build the optimizer that SOLVER.OPTIMIZER names, with learning rates for heads and layers.

    SOLVER.HEAD_LR_FACTOR scales the rates of parameters outside ``backbone.``; SOLVER.LAYER_DECAY
    scales the rates of the layers in a timm network. AdamW applies no weight decay to parameters
    that timm exempts (docs/keys.md); SGD follows Detectron2's rules for weight decay. As in
    Detectron2, the optimizer clips gradients if SOLVER.CLIP_GRADIENTS is enabled.

    Args:
        own_step: whether :class:`.AccumulatingTrainer` takes the steps. It clips the gradients
            instead of the optimizer, and allows fused steps, which are faster on a GPU.
    """
    solver = cfg.SOLVER
    asks_timm = solver.LAYER_DECAY != 1 or solver.OPTIMIZER == "AdamW"
    of_timm: dict[str, Training] = {}  # name of a TimmBackbone's parameter -> timm's rules for it
    for prefix, module in model.named_modules() if asks_timm else ():
        if hasattr(module, "training_of_parameters"):
            training = module.training_of_parameters(solver.LAYER_DECAY)
            of_timm |= {f"{prefix}.{name}": how for name, how in training.items()}

    def factor(name: str) -> float:
        part = 1.0 if name.startswith("backbone.") else solver.HEAD_LR_FACTOR
        if name in of_timm:
            part *= of_timm[name].lr_factor
        # Detectron2's argument for biases would override the factors of heads and layers.
        return part * (solver.BIAS_LR_FACTOR if name.endswith(".bias") else 1.0)

    groups = get_default_optimizer_params(
        model,
        base_lr=solver.BASE_LR,
        weight_decay_norm=solver.WEIGHT_DECAY_NORM,
        weight_decay_bias=solver.WEIGHT_DECAY_BIAS,
        lr_factor_func=factor,
    )
    # On a CPU, a fused step gains little and would change the last bits of the results.
    is_fused = own_step and next(model.parameters()).is_cuda
    way: dict[str, Any] = {"fused": True} if is_fused else {"foreach": True}
    optimizer: torch.optim.Optimizer
    if solver.OPTIMIZER == "AdamW":
        exempt = [
            parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
            and (parameter.ndim <= 1 or (name in of_timm and not of_timm[name].decays))
            and (solver.WEIGHT_DECAY_BIAS is None or not name.endswith(".bias"))
        ]
        # Later groups overwrite earlier groups.
        groups += [{"params": exempt, "weight_decay": solver.WEIGHT_DECAY_NORM}]
        groups = reduce_param_groups(groups)
        optimizer = torch.optim.AdamW(
            groups, lr=solver.BASE_LR, weight_decay=solver.WEIGHT_DECAY, **way
        )
    else:
        optimizer = torch.optim.SGD(
            groups,
            lr=solver.BASE_LR,
            momentum=solver.MOMENTUM,
            nesterov=solver.NESTEROV,
            weight_decay=solver.WEIGHT_DECAY,
            **way,
        )
    return optimizer if own_step else maybe_add_gradient_clipping(cfg, optimizer)


def build_schedule(cfg: CfgNode, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Build the learning-rate schedule named by SOLVER.LR_SCHEDULER_NAME."""
    cfg = cfg.clone()
    cfg.defrost()
    # Detectron2 fails at a step that equals MAX_ITER, which would change nothing.
    cfg.SOLVER.STEPS = tuple(step for step in cfg.SOLVER.STEPS if step != cfg.SOLVER.MAX_ITER)
    return build_lr_scheduler(cfg, optimizer)
