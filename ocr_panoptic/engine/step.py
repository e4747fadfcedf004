"""The training step, with gradient accumulation, mixed precision and gradient clipping."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable

import torch
from detectron2.config import CfgNode
from detectron2.engine import SimpleTrainer, create_ddp_model
from detectron2.utils import comm
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ocr_panoptic.errors import UserError


class AccumulatingTrainer(SimpleTrainer):
    """
    A Detectron2 trainer that splits each batch into parts and then takes one optimizer step.

    The step uses the mean of the parts' gradients. If all losses are means over images, the step
    equals a step on the whole batch, except for batch norms, which see one part at a time.

    Args:
        steps: number of parts, which must divide the number of images per step and process.
        amp: whether to use mixed precision.
        precision: dtype of mixed precision: "float16" (the loss is then scaled), "bfloat16", or
            "auto" for float16 on a GPU and bfloat16 on a CPU.
        gather_period: number of iterations between two exchanges of losses among the processes. The
            run ends if the sum of the exchanged losses is not finite.
        clip: function that clips the gradients before each optimizer step; None for no clipping.
    """

    def __init__(
        self,
        model: nn.Module,
        data_loader,
        optimizer,
        *,
        steps: int = 1,
        amp: bool = False,
        precision: str = "auto",
        gather_period: int = 1,
        clip: Callable[[], None] | None = None,
    ):
        super().__init__(model, data_loader, optimizer, gather_metric_period=gather_period)
        self.steps, self.clip = steps, clip
        device = next(model.parameters()).device.type
        if precision == "auto":
            precision = "bfloat16" if device == "cpu" else "float16"
        elif amp and device == "cpu" and precision == "float16":
            raise UserError("SOLVER.AMP.PRECISION is float16, but a CPU needs auto or bfloat16.")
        dtype = getattr(torch, precision)
        self.autocast = functools.partial(torch.autocast, device, dtype, enabled=amp)
        self.grad_scaler = torch.amp.GradScaler("cuda", enabled=amp and dtype == torch.float16)
        prepare_state(optimizer)

    def run_step(self) -> None:
        start = time.perf_counter()
        data = next(self._data_loader_iter)
        data_time = time.perf_counter() - start
        self.optimizer.zero_grad()
        totals: dict[str, torch.Tensor] = {}
        size = len(data) // self.steps
        for step in range(self.steps):
            # Processes exchange gradients only in the backward pass of the last part.
            waits = step < self.steps - 1 and isinstance(self.model, DistributedDataParallel)
            with self.model.no_sync() if waits else contextlib.nullcontext():
                with self.autocast():
                    losses = self.model(data[step * size : (step + 1) * size])
                    if self.steps > 1:
                        losses = {name: loss / self.steps for name, loss in losses.items()}
                self.grad_scaler.scale(sum(losses.values())).backward()
            for name, loss in losses.items():
                totals[name] = totals.get(name, 0) + loss.detach()
        self.after_backward()
        self._write_metrics(totals, data_time)
        if self.clip:
            self.grad_scaler.unscale_(self.optimizer)
            self.clip()
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()

    def state_dict(self) -> dict:
        return {**super().state_dict(), "grad_scaler": self.grad_scaler.state_dict()}

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        prepare_state(self.optimizer)
        if state_dict.get("grad_scaler"):  # empty without AMP and on a CPU
            self.grad_scaler.load_state_dict(state_dict["grad_scaler"])


def build_step(
    cfg: CfgNode,
    model: nn.Module,
    loader: Iterable,
    optimizer: torch.optim.Optimizer,
    gather_period: int,
) -> AccumulatingTrainer:
    """Return the trainer of a model's steps that a config describes, in all processes."""
    solver = cfg.SOLVER
    if solver.AMP.ENABLED:  # channels-last makes half precision faster, also on a CPU
        model.to(memory_format=torch.channels_last)
    return AccumulatingTrainer(
        create_ddp_model(
            model,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            device_ids=[comm.get_local_rank()] if cfg.MODEL.DEVICE.startswith("cuda") else None,
        ),
        loader,
        optimizer,
        steps=solver.ACCUMULATION_STEPS,
        amp=solver.AMP.ENABLED,
        precision=solver.AMP.PRECISION,
        gather_period=gather_period,
        clip=build_clipping(cfg, optimizer),
    )


def build_clipping(cfg: CfgNode, optimizer: torch.optim.Optimizer) -> Callable[[], None] | None:
    """
    Return a function that clips each parameter's gradient; None if clipping is disabled.

    The function expects gradients without the loss scale of mixed precision.
    """
    # Detectron2 clips in the optimizer's step, when a fused optimizer's gradients are still scaled
    # by the loss scale.
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
    Prepare an optimizer's momenta for fused steps.

    Missing momenta become 0, and all momenta take the memory layout of their parameters.
    """
    # If a float16 gradient is infinite, the first step is skipped. SGD would then leave its momenta
    # uninitialised, and the second step would read them.
    for group in optimizer.param_groups:
        is_unset = group.get("fused") and group.get("momentum")
        for parameter in group["params"] if is_unset else ():
            if optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    # A fused step reads a momentum in the order of its parameter's memory.
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            is_momentum = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if is_momentum and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
