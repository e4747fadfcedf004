"""Replaces synchronised batch norms where processes cannot, or need not, synchronise."""

import torch
from detectron2.utils import comm
from torch import nn

from ocr_panoptic.errors import UserError

from .conv import CPUSyncBatchNorm

UNSYNCHRONISED = (
    "MODEL.TIMM.NORM is SyncBN, but norms with an activation (EfficientNet, MobileNet, RegNet) can "
    "be synchronised only on GPUs. Set it to BN or FrozenBN."
)


def fit_sync_norms(model: nn.Module, device: str) -> nn.Module:
    """
    Replace PyTorch's ``SyncBatchNorm`` in a model, in place, and return the model.

    With one process, the norm equals ``BatchNorm2d``, which can be folded and exported. On CPUs,
    PyTorch's norm cannot train, and :class:`.CPUSyncBatchNorm` can. The parameters stay the same.

    Args:
        device: device of the training, such as "cuda:1".

    Raises:
        UserError: several processes train on CPUs, and the model has timm's norms with activations.
    """
    several = comm.get_world_size() > 1
    if several and torch.device(device).type != "cpu":
        return model
    kind = CPUSyncBatchNorm if several else nn.BatchNorm2d
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            if type(norm) is nn.SyncBatchNorm:
                setattr(parent, name, _converted(norm, kind))
            elif several and isinstance(norm, nn.SyncBatchNorm):
                raise UserError(UNSYNCHRONISED)
    return model


def _converted(norm: nn.SyncBatchNorm, kind: type[nn.BatchNorm2d]) -> nn.BatchNorm2d:
    made = kind(norm.num_features, eps=norm.eps, momentum=norm.momentum)
    for name, tensor in [*norm.named_parameters(), *norm.named_buffers()]:
        setattr(made, name, tensor)
    return made.train(norm.training)
