"""An exponential moving average of the weights: what is evaluated and saved in their place."""

import copy
from collections.abc import Mapping

import torch
from detectron2.config import CfgNode
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
        pairs = list(zip(_places(self.module), _places(model)))
        self._numbers = [pair for pair in pairs if getattr(*pair[0]).is_floating_point()]
        self._counters = [pair for pair in pairs if not getattr(*pair[0]).is_floating_point()]

    @classmethod
    def of(cls, cfg: CfgNode, model: nn.Module) -> "Averaging | None":
        """None without MODEL.EMA.ENABLED."""
        return cls(model, cfg.MODEL.EMA.DECAY) if cfg.MODEL.EMA.ENABLED else None

    @torch.no_grad()
    def begin(self) -> None:
        """The average is the model as it is now."""
        torch._foreach_copy_(*_tensors(self._numbers + self._counters))

    @torch.no_grad()
    def after_step(self) -> None:
        torch._foreach_lerp_(*_tensors(self._numbers), 1 - self._decay)
        if self._counters:  # of batch norms
            torch._foreach_copy_(*_tensors(self._counters))

    def trained(self) -> Mapping[str, Tensor]:
        """The weights that are trained, for a checkpoint whose model is the average."""
        return self._model.state_dict()


# Where a tensor is: modules stay, but their buffers may be exchanged.
_Place = tuple[nn.Module, str]


def _places(model: nn.Module) -> list[_Place]:
    """Return the tensors of the state dict, which takes several times as long to ask for."""
    saved = model.state_dict().keys()
    return [
        (module, name)
        for prefix, module in model.named_modules()
        for name in (*module._parameters, *module._buffers)
        if f"{prefix}.{name}".lstrip(".") in saved
    ]


def _tensors(pairs: list[tuple[_Place, _Place]]) -> tuple[list[Tensor], list[Tensor]]:
    return tuple([getattr(*place) for place in places] for places in zip(*pairs))
