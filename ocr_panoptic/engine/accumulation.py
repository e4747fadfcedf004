"""Gradient accumulation: the published batch on a GPU that holds a part of it."""

import contextlib
import functools
import time

import torch
from detectron2.engine import SimpleTrainer
from torch import nn


class AccumulatingTrainer(SimpleTrainer):
    """
    Detectron2's ``SimpleTrainer`` (or, with ``amp``, ``AMPTrainer``) that runs a batch in several
    parts and steps once: the gradients are the mean of those of the parts. Iterations, schedule
    and batch size keep their meaning.

    It equals one step on the whole batch for losses that are means over images; batch norms, and
    losses that are means over pixels or boxes, see each part by itself.

    Args:
        steps: parts of a batch; it divides the number of images that this process loads.
        amp: autocast to float16 and loss scaling on a GPU; to bfloat16, which has the range of
            float32 and needs no scaling, on a CPU.
    """

    def __init__(self, model: nn.Module, data_loader, optimizer, *, steps: int, amp: bool):
        super().__init__(model, data_loader, optimizer)
        self.steps = steps
        device = next(model.parameters()).device.type
        dtype = torch.bfloat16 if device == "cpu" else torch.float16
        self.autocast = functools.partial(torch.autocast, device, dtype, enabled=amp)
        self.grad_scaler = torch.amp.GradScaler("cuda", enabled=amp and device == "cuda")

    def run_step(self) -> None:
        start = time.perf_counter()
        data = next(self._data_loader_iter)
        data_time = time.perf_counter() - start
        self.optimizer.zero_grad()
        totals: dict[str, torch.Tensor] = {}
        size = len(data) // self.steps
        for step in range(self.steps):
            last = step == self.steps - 1
            part = data[step * size :] if last else data[step * size : (step + 1) * size]
            # Processes exchange gradients once, with the last part.
            wait = getattr(self.model, "no_sync", None)
            with contextlib.nullcontext() if last or wait is None else wait():
                with self.autocast():
                    losses = {k: v / self.steps for k, v in self.model(part).items()}
                self.grad_scaler.scale(sum(losses.values())).backward()
            for name, loss in losses.items():
                totals[name] = totals.get(name, 0) + loss.detach()
        self.after_backward()
        self._write_metrics(totals, data_time)
        self.grad_scaler.step(self.optimizer)
        self.grad_scaler.update()

    def state_dict(self) -> dict:
        return {**super().state_dict(), "grad_scaler": self.grad_scaler.state_dict()}

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        if state_dict.get("grad_scaler"):  # none is saved without AMP, or on a CPU
            self.grad_scaler.load_state_dict(state_dict["grad_scaler"])
