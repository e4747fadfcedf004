"""Gradient accumulation: the published batch on a GPU that holds a part of it."""

import contextlib
import functools
import time
from collections.abc import Callable

import torch
from detectron2.config import CfgNode
from detectron2.engine import SimpleTrainer, create_ddp_model
from detectron2.utils import comm
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ocr_panoptic.errors import UserError

from .loss_log import Diverged, LossLog
from .optimizer import build_clipping, prepare_state


def autocast_dtype(precision: str, device: str) -> torch.dtype:
    """
    Args:
        precision: SOLVER.AMP.PRECISION: "float16", "bfloat16", or "auto" for float16 on a GPU
            and bfloat16 on a CPU.
        device: "cuda" or "cpu".

    Raises:
        ValueError: for another precision, or float16 on a CPU.
    """
    names = ("auto", "bfloat16") if device == "cpu" else ("auto", "float16", "bfloat16")
    if precision not in names:
        raise UserError(
            f"SOLVER.AMP.PRECISION is {precision}; with MODEL.DEVICE {device} it is "
            f"{' or '.join(names)}"
        )
    if precision == "auto":
        precision = names[1]
    return getattr(torch, precision)


class AccumulatingTrainer(SimpleTrainer):
    """
    Detectron2's ``SimpleTrainer`` (or, with ``amp``, ``AMPTrainer``) that runs a batch in several
    parts and steps once: the gradients are the mean of those of the parts. Iterations, schedule
    and batch size keep their meaning. A loss that is not finite ends all processes in the iteration
    after it, see :class:`.LossLog`: no value is waited for before the step.

    It equals one step on the whole batch for losses that are means over images; batch norms, and
    losses that are means over pixels or boxes, see each part by itself.

    Args:
        steps: parts of a batch; it divides the number of images that this process loads.
        amp: autocast; with float16 the loss is scaled, bfloat16 has the range of float32.
        precision: of autocast, see :func:`autocast_dtype`.
        gather_period: see :class:`.LossLog`.
        clip: called before each step, see :func:`.build_clipping`.
    """

    def __init__(
        self,
        model: nn.Module,
        data_loader,
        optimizer,
        *,
        steps: int,
        amp: bool,
        precision: str = "auto",
        gather_period: int = 1,
        clip: Callable[[], None] | None = None,
    ):
        super().__init__(model, data_loader, optimizer)
        self.steps = steps
        self.clip = clip
        self.loss_log = LossLog(gather_period)
        device = next(model.parameters()).device.type
        dtype = autocast_dtype(precision if amp else "auto", device)
        autocast = functools.partial(torch.autocast, device, dtype)
        self.autocast = autocast if amp else contextlib.nullcontext
        self.grad_scaler = torch.amp.GradScaler("cuda", enabled=amp and dtype == torch.float16)
        prepare_state(optimizer)

    def run_step(self) -> None:
        start = time.perf_counter()
        data = next(self._data_loader_iter)
        data_time = time.perf_counter() - start
        images = [d["file_name"] for d in data if isinstance(d, dict) and "file_name" in d]
        self.optimizer.zero_grad()
        values = []  # of the losses, of each part
        size = len(data) // self.steps
        for step in range(self.steps):
            last = step == self.steps - 1
            part = data[step * size :] if last else data[step * size : (step + 1) * size]
            # Processes exchange gradients once, with the last part.
            waits = not last and isinstance(self.model, DistributedDataParallel)
            with self.model.no_sync() if waits else contextlib.nullcontext():
                with self.autocast():
                    losses = self._losses(part, images)
                    if self.steps > 1:
                        losses = {name: loss / self.steps for name, loss in losses.items()}
                self.grad_scaler.scale(sum(losses.values())).backward()
            values.append(torch.stack([*losses.values()]).detach())
        self.after_backward()
        if self.clip:
            self.grad_scaler.unscale_(self.optimizer)
            self.clip()
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()
        total = functools.reduce(torch.add, values)
        self.loss_log.add(self.iter, [*losses], total, data_time, images)

    def _losses(self, part: list, images: list[str]) -> dict[str, torch.Tensor]:
        try:
            return self.model(part)
        except FloatingPointError as e:  # Detectron2's proposals look at values, too
            self.loss_log.look()  # of the iteration before, whose step the model has made
            raise Diverged(f"Iteration {self.iter}: {e} The images are {', '.join(images)}.") from e

    def state_dict(self) -> dict:
        return {**super().state_dict(), "grad_scaler": self.grad_scaler.state_dict()}

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        prepare_state(self.optimizer)
        if state_dict.get("grad_scaler"):  # none is saved without AMP, or on a CPU
            self.grad_scaler.load_state_dict(state_dict["grad_scaler"])


def build_steps(
    cfg: CfgNode, model: nn.Module, data_loader, optimizer: torch.optim.Optimizer
) -> AccumulatingTrainer:
    """Return what steps a model as the config says, which all processes train together."""
    amp = cfg.SOLVER.AMP
    if amp.ENABLED:  # in half precision the faster one, on a CPU too
        model.to(memory_format=torch.channels_last)
    on_gpu = cfg.MODEL.DEVICE.startswith("cuda")
    together = create_ddp_model(
        model,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
        device_ids=[comm.get_local_rank()] if on_gpu else None,
    )
    return AccumulatingTrainer(
        together,
        data_loader,
        optimizer,
        steps=cfg.SOLVER.ACCUMULATION_STEPS,
        amp=amp.ENABLED,
        precision=amp.PRECISION,
        gather_period=cfg.SOLVER.GATHER_METRIC_PERIOD,
        clip=build_clipping(cfg, optimizer),
    )
