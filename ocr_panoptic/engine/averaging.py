"""An exponential moving average of the weights: what is evaluated and saved in their place."""

from collections.abc import Mapping

from detectron2.config import CfgNode
from detectron2.engine import HookBase
from timm.utils import ModelEmaV3
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
        self._average = ModelEmaV3(model, decay)
        self.module = self._average.module.train().requires_grad_(False)

    @classmethod
    def of(cls, cfg: CfgNode, model: nn.Module) -> "Averaging | None":
        """Return that of a config; None without MODEL.EMA.ENABLED."""
        return cls(model, cfg.MODEL.EMA.DECAY) if cfg.MODEL.EMA.ENABLED else None

    def begin(self) -> None:
        """Begin with the model as it is now."""
        self._average.set(self._model)

    def after_step(self) -> None:
        self._average.update(self._model)

    def trained(self) -> Mapping[str, Tensor]:
        """Return the weights that are trained, for a checkpoint whose model is the average."""
        return self._model.state_dict()
