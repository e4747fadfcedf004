"""The batch norms of timm's networks: replaced for MODEL.TIMM.NORM, and folded for inference."""

from collections.abc import Collection

from timm.layers import BatchNormAct2d, ConvNormAct, convert_sync_batchnorm, freeze_batch_norm_2d
from timm.models._efficientnet_blocks import (
    ConvBnAct,
    DepthwiseSeparableConv,
    EdgeResidual,
    InvertedResidual,
)
from timm.models.resnet import BasicBlock, Bottleneck
from torch import nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers.conv import CPUSyncBatchNorm
from ocr_panoptic.layers.folding import fold_into

from .timm_parts import replace

# Blocks that call their convolutions and norms in the order in which they are registered.
_IN_ORDER = (
    *(BasicBlock, Bottleneck, ConvNormAct),
    *(ConvBnAct, DepthwiseSeparableConv, InvertedResidual, EdgeResidual),
)


def convert_norms(network: nn.Module, norm: str) -> nn.Module:
    """
    Return the network with batch norms of another kind; other norms stay.

    timm converts them together with the activations that they may contain (``BatchNormAct2d``).

    Args:
        network: network, which may be changed in place.
        norm: "BN", "SyncBN", "FrozenBN", or "naiveSyncBN" for processes on CPUs.
    """
    conversions = {
        "BN": lambda network: network,
        "SyncBN": convert_sync_batchnorm,
        "FrozenBN": freeze_batch_norm_2d,
        "naiveSyncBN": _with_naive_norms,
    }
    if norm not in conversions:
        raise UserError(f"MODEL.TIMM.NORM is {norm}; it has to be one of {', '.join(conversions)}")
    return conversions[norm](network)


def _with_naive_norms(network: nn.Module) -> nn.Module:
    if any(isinstance(module, BatchNormAct2d) for module in network.modules()):
        raise UserError(
            "MODEL.TIMM.NORM SyncBN: norms with an activation (EfficientNet, MobileNet, RegNet) "
            "are synchronised on GPUs only. Set it to BN or FrozenBN"
        )

    def naive(norm: nn.BatchNorm2d) -> CPUSyncBatchNorm:
        synchronised = CPUSyncBatchNorm(norm.num_features, eps=norm.eps, momentum=norm.momentum)
        synchronised.load_state_dict(norm.state_dict())
        return synchronised

    replace(network, nn.BatchNorm2d, naive)
    return network


def fold_network(network: nn.Module, outputs: Collection[str]) -> None:
    """
    Fold batch norms into their convolutions, in place, if both are known to follow each other.

    Args:
        network: copy of a network with ``features_only``, which shares its tensors.
        outputs: names of the modules whose results are features: a convolution among them stays.
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
