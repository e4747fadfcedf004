"""
The batch norms of timm's networks: as MODEL.TIMM.NORM has them, and folded for inference.

Many of timm's batch norms (``BatchNormAct2d``: EfficientNet, MobileNet, RegNet ...) apply the
activation as well. PyTorch's and Detectron2's conversions know the norm alone and lose it.
"""

from collections.abc import Collection

from detectron2.layers import FrozenBatchNorm2d
from timm.layers import BatchNormAct2d, ConvNormAct
from timm.models._efficientnet_blocks import (
    ConvBnAct,
    DepthwiseSeparableConv,
    EdgeResidual,
    InvertedResidual,
)
from timm.models.resnet import BasicBlock, Bottleneck
from torch import Tensor, nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers import SyncBatchNorm, fold_into

# Blocks that call their convolutions and norms in the order in which they are registered.
_IN_ORDER = (
    *(BasicBlock, Bottleneck, ConvNormAct),
    *(ConvBnAct, DepthwiseSeparableConv, InvertedResidual, EdgeResidual),
)


class FrozenBatchNormAct2d(FrozenBatchNorm2d):
    """Detectron2's frozen norm, and the activation of timm's."""

    def __init__(self, norm: FrozenBatchNorm2d, source: BatchNormAct2d):
        super().__init__(norm.num_features, norm.eps)
        for name, buffer in norm.named_buffers():
            setattr(self, name, buffer)
        self.drop, self.act = source.drop, source.act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class SyncBatchNormAct2d(SyncBatchNorm):
    """Our synchronised norm, and the activation of timm's."""

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


def with_norm(network: nn.Module, norm: str) -> nn.Module:
    """
    Args:
        network: with batch norms, which may be changed in place. Other norms stay.
        norm: "BN", "SyncBN" or "FrozenBN".

    Raises:
        ValueError: for another one.
    """
    if norm == "SyncBN":
        for module in network.modules():
            if isinstance(module, BatchNormAct2d):
                SyncBatchNormAct2d.convert(module)
            elif isinstance(module, nn.BatchNorm2d):
                SyncBatchNorm.convert(module)
    elif norm == "FrozenBN":
        active = {k: m for k, m in network.named_modules() if isinstance(m, BatchNormAct2d)}
        network = FrozenBatchNorm2d.convert_frozen_batchnorm(network)
        for name, source in active.items():
            frozen = FrozenBatchNormAct2d(network.get_submodule(name), source)
            network.set_submodule(name, frozen)
    elif norm != "BN":
        raise UserError(f"MODEL.TIMM.NORM is {norm}; it is BN, SyncBN or FrozenBN")
    return network


def fold_network(network: nn.Module, outputs: Collection[str]) -> None:
    """
    Fold the batch norms of a network with ``features_only`` into their convolutions, in place,
    where both are known to follow each other; see :func:`.fold_into`.

    Args:
        outputs: names of the modules whose results are given out: a convolution among them stays.
    """
    for module in network.modules():
        is_sequence = isinstance(module, nn.Sequential)
        is_sequence = is_sequence and type(module).forward is nn.Sequential.forward
        if module is not network and not is_sequence and not isinstance(module, _IN_ORDER):
            continue
        children = list(module.named_children())
        for (conv_name, conv), (name, norm) in zip(children, children[1:]):
            if module is network and conv_name in outputs:
                continue
            if isinstance(conv, nn.Conv2d) and fold_into(conv, norm):
                setattr(module, name, getattr(norm, "act", nn.Identity()))
