"""An exponential moving average of the weights: what is evaluated and saved in their place."""

import torch
from detectron2.engine import HookBase
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class Averaging(HookBase):
    """
    Updates PyTorch's average after each step: average = decay * average + (1 - decay) * model, for
    weights and buffers. Integers, which count the batches of norms, are copied.

    Args:
        model: without DistributedDataParallel. Every process has the same average.
        decay: MODEL.EMA.DECAY.

    Attributes:
        module: the averaged model, in training mode, so that its batch norms can be renewed.
    """

    def __init__(self, model: nn.Module, decay: float):
        def average(averages: list[Tensor], values: list[Tensor], _: int) -> None:  # of one type
            if averages[0].is_floating_point():
                torch._foreach_lerp_(averages, values, 1 - decay)
            else:  # PyTorch's own function would average and truncate them
                torch._foreach_copy_(averages, values)

        self._model = model
        self._average = AveragedModel(model, multi_avg_fn=average, use_buffers=True)
        self.module = self._average.module.train().requires_grad_(False)

    @torch.no_grad()
    def begin(self) -> None:
        """Begin with the model as it is now: the first update copies."""
        self._average.update_parameters(self._model)

    @torch.no_grad()
    def after_step(self) -> None:
        self._average.update_parameters(self._model)
