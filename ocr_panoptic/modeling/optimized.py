"""A model's copy for inference: the same function in less time and memory."""

import copy

import torch
from detectron2.config import CfgNode
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from torch import nn

from ocr_panoptic.layers import fold_norms, to_channels_last

from .panoptic_inference import PanopticInference
from .timm_backbone import TimmBackbone
from .timm_padding import EvenConv2dSame

PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def check_inference_keys(cfg: CfgNode) -> None:
    """
    Raises:
        ValueError: TEST.PRECISION is unknown, or the device or TEST.OPTIMIZED does not go with it.
    """
    precision, device = cfg.TEST.PRECISION, cfg.MODEL.DEVICE
    if precision == "float32":
        return
    if precision not in PRECISIONS:
        raise ValueError(
            f"TEST.PRECISION is {precision!r}; it is 'float32', 'bfloat16' or, on a GPU, 'float16'"
        )
    if precision == "float16" and not device.startswith("cuda"):
        raise ValueError(
            f"TEST.PRECISION is 'float16', which needs a GPU, and MODEL.DEVICE is {device}; "
            "set 'bfloat16' or 'float32'"
        )
    if not cfg.TEST.OPTIMIZED:
        raise ValueError(
            f"TEST.PRECISION is {precision!r} and TEST.OPTIMIZED False, a model as it is in "
            "training; set TEST.OPTIMIZED True, or TEST.PRECISION 'float32'"
        )


def optimized(cfg: CfgNode, model: nn.Module) -> nn.Module:
    """
    What TEST.OPTIMIZED and TEST.PRECISION make of a model for inference. The model is left as it is
    and can be trained on; what is not changed is shared with it, so a copy serves until the next
    step of the optimizer.

    - Norms that are affine (frozen, or batch norms) are folded into their convolutions.
    - Convolutions work in channels-last memory. Those of timm with SAME padding pad by constants
      where images are padded to multiples of all strides.
    - Panoptic-FPN upsamples the semantic logits class by class, see :class:`.PanopticInference`.

    Args:
        cfg: read are TEST.OPTIMIZED, TEST.PRECISION and MODEL.DEVICE.
        model: as it was built and loaded, without DistributedDataParallel.

    Returns:
        the copy, in evaluation mode; a model that is one already, or with TEST.OPTIMIZED False, as
        it is

    Raises:
        ValueError: see :func:`check_inference_keys`.
    """
    check_inference_keys(cfg)
    if not cfg.TEST.OPTIMIZED or getattr(model, "is_optimized", False):
        return model
    model = evenly_padded(model).eval()
    model.is_optimized = True
    for module in list(model.modules()):
        if isinstance(module, TimmBackbone):
            module.fold_norms()
    fold_norms(model)
    to_channels_last(model)
    if type(model) is PanopticFPN:
        PanopticInference.convert(model)
    if cfg.TEST.PRECISION != "float32":
        model.forward = inference_precision(cfg)(model.forward)
    return model


def evenly_padded(model: nn.Module) -> nn.Module:
    """A copy of a model, which shares its tensors, whose convolutions with SAME padding pad by
    constants where images are padded to multiples of all strides."""
    shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
    model = copy.deepcopy(model, shared)
    for module in model.modules():
        if isinstance(module, TimmBackbone):
            divisor = getattr(model, "divisor", model.backbone.size_divisibility)
            if divisor and all(divisor % s.stride == 0 for s in module.output_shape().values()):
                EvenConv2dSame.convert_all(module)
    return model


def inference_precision(cfg: CfgNode) -> torch.autocast:
    """The precision of TEST.PRECISION, for what is called of a model beside its ``forward``."""
    dtype = PRECISIONS.get(cfg.TEST.PRECISION)
    return torch.autocast(torch.device(cfg.MODEL.DEVICE).type, dtype, enabled=dtype is not None)
