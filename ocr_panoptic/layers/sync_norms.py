"""Replaces synchronised batch norms where processes cannot, or need not, synchronise."""

import torch
import torch.distributed as dist
from detectron2.utils import comm
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

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
    timm's norms with an activation stay.

    Args:
        device: device of the training, such as "cuda:1".

    Raises:
        UserError: torchrun started this process on a CPU, and the model has timm's norms with
            activations.
    """
    several, on_cpu = comm.get_world_size() > 1, torch.device(device).type == "cpu"
    if several and not on_cpu:
        return model
    kind = CPUSyncBatchNorm if several else nn.BatchNorm2d
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            if type(norm) is nn.SyncBatchNorm:
                setattr(parent, name, converted(norm, kind))
            elif on_cpu and dist.is_initialized() and isinstance(norm, nn.SyncBatchNorm):
                raise UserError(UNSYNCHRONISED)
    return model


def converted(norm: _BatchNorm, kind: type[nn.BatchNorm2d]) -> nn.BatchNorm2d:
    """Return a batch norm of another kind with the same parameters and statistics."""
    made = kind(norm.num_features, eps=norm.eps, momentum=norm.momentum)
    for name, tensor in [*norm.named_parameters(), *norm.named_buffers()]:
        setattr(made, name, tensor)
    return made.train(norm.training)
