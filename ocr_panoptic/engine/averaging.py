"""An exponential moving average of the weights: what is evaluated and saved in their place."""

import copy
from collections.abc import Mapping

import torch
from detectron2.engine import HookBase
from torch import Tensor, nn


class Averaging(HookBase):
    """
    The average of a model's weights and buffers, average = decay * average + (1 - decay) * model
    after each step; integers are copied. It begins as the weights that the training begins with.

    Args:
        model: without DistributedDataParallel. Every process has the same average.
        decay: MODEL.EMA.DECAY.

    Attributes:
        module: the averaged model, in training mode, so that its batch norms can be renewed.
    """

    def __init__(self, model: nn.Module, decay: float):
        self._model = model
        self._decay = decay
        self.module = copy.deepcopy(model).train().requires_grad_(False)
        self._places = list(zip(_places(self.module), _places(model), strict=True))

    @torch.no_grad()
    def begin(self) -> None:
        """Begin with the model as it is now."""
        torch._foreach_copy_(*zip(*self._pairs()))

    @torch.no_grad()
    def after_step(self) -> None:
        pairs = self._pairs()
        numbers = [pair for pair in pairs if pair[0].is_floating_point()]
        counters = [pair for pair in pairs if not pair[0].is_floating_point()]
        torch._foreach_lerp_(*zip(*numbers), weight=1 - self._decay)
        if counters:  # of batch norms
            torch._foreach_copy_(*zip(*counters))

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return [(average[k], model[name]) for (average, k), (model, name) in self._places]

    def trained(self) -> Mapping[str, Tensor]:
        """Return the weights that are trained, for a checkpoint whose model is the average."""
        return self._model.state_dict()


def _places(model: nn.Module) -> list[tuple[dict[str, Tensor], str]]:
    """Return where the tensors of the state dict are, which takes long to ask for in each step.
    They are no tensors, as precise statistics take the place of a batch norm's."""
    return [
        (tensors, name)
        for module in model.modules()
        for tensors in (module._parameters, module._buffers)
        for name, tensor in tensors.items()
        if tensor is not None and name not in module._non_persistent_buffers_set
    ]
