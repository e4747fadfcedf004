"""An exponential moving average of the weights: what is evaluated and saved in their place."""

import copy
from collections.abc import Mapping

import torch
from detectron2.engine import HookBase
from torch import Tensor, nn

_Places = list[tuple[dict[str, Tensor], str]]


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
        models = self.module, model
        self._numbers = [_places(m, floating=True) for m in models]
        self._counters = [_places(m, floating=False) for m in models]  # of batch norms

    @torch.no_grad()
    def begin(self) -> None:
        """Begin with the model as it is now."""
        torch._foreach_copy_(*map(_tensors, self._numbers))
        self._count()

    @torch.no_grad()
    def after_step(self) -> None:
        torch._foreach_lerp_(*map(_tensors, self._numbers), weight=1 - self._decay)
        self._count()

    def _count(self) -> None:
        if all(self._counters):
            torch._foreach_copy_(*map(_tensors, self._counters))

    def trained(self) -> Mapping[str, Tensor]:
        """Return the weights that are trained, for a checkpoint whose model is the average."""
        return self._model.state_dict()


def _places(model: nn.Module, *, floating: bool) -> _Places:
    """Return where the tensors of the state dict are, which takes long to ask for in each step.
    They are no tensors, as precise statistics take the place of a batch norm's."""
    return [
        (tensors, name)
        for module in model.modules()
        for tensors in (module._parameters, module._buffers)
        for name, tensor in tensors.items()
        if tensor is not None and name not in module._non_persistent_buffers_set
        if tensor.is_floating_point() == floating
    ]


def _tensors(places: _Places) -> list[Tensor]:
    return [tensors[name] for tensors, name in places]
