"""Adapts ImageNet weights to a model's backbone: their tensor names and input channels."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import timm
import torch
from tabulate import tabulate
from timm.models import adapt_input_conv
from torch import nn

from ocr_panoptic.errors import UserError

from .addresses import TIMM
from .efficientnet_lite import SETTINGS as LITE_SETTINGS
from .efficientnet_lite import is_efficientnet_lite, timm_names

# Prefixes of Detectron2's ResNet and of a timm network: by itself, in an FPN, in a simple pyramid.
_PREFIXES = (
    *("backbone.", "backbone.bottom_up."),
    *("backbone.body.", "backbone.bottom_up.body.", "backbone.net.body."),
)

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


def imagenet_to_backbone(
    weights: Mapping[str, Any],
    model_shapes: Mapping[str, tuple[int, ...]],
    file: str,
    to_timm_names: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> Mapping[str, Any]:
    """
    Rename ImageNet weights to the tensor names of a model's backbone, and drop other weights.

    docs/checkpoints.md lists the supported files. Only names and shapes are compared. The config
    must set the rest: MODEL.RESNETS.STRIDE_IN_1X1 False for the ResNets, whose stride is in the 3x3
    convolution, and the INPUT.FORMAT, mean and deviation of the original training.

    Args:
        weights: name in the file -> tensor.
        model_shapes: shape of each tensor of the model, by name (``backbone.*`` and others).
        file: name of the file in messages.
        to_timm_names: :meth:`.TimmBackbone.to_timm_names`; None if the backbone is not timm's.

    Returns:
        the renamed weights; ``weights`` itself if its names are the model's or are unknown
    """
    tensors: Mapping[str, Any] = {k.removeprefix("module."): v for k, v in weights.items()}
    if any(name in model_shapes for name in tensors):
        return weights
    if to_timm_names is not None:
        tensors = to_timm_names(tensors)
    renamings = (
        {name: name for name in tensors},
        {name: name.replace(".", "_", 1) for name in tensors},  # timm with features_only
        {name: f"model.{name}" for name in tensors},
        {name: detectron2_resnet_name(name) for name in tensors},
        timm_names(tensors, model_shapes) if is_efficientnet_lite(tensors) else {},
    )
    renamed, prefix = max(
        (
            ({old: p + new for old, new in names.items() if p + new in model_shapes}, p)
            for p in _PREFIXES
            for names in renamings
        ),
        key=lambda found: len(found[0]),
    )
    if not renamed:
        return weights

    needed = [
        k for k in model_shapes if k.startswith(prefix) and not k.endswith("num_batches_tracked")
    ]
    found = {k: tensors[name] for name, k in renamed.items()}
    faults: list[tuple[str, Any, Any]]
    faults = [(k, "missing", model_shapes[k]) for k in sorted({*needed} - found.keys())]
    faults += [
        (k, tuple(tensor.shape), model_shapes[k])
        for k, tensor in found.items()
        if tuple(tensor.shape) != tuple(model_shapes[k])
    ]
    if faults:
        table = tabulate(faults[:10], headers=["tensor", "in the file", "in the model"])
        raise UserError(
            f"The ImageNet weights {file} do not fit the backbone: {len(faults)} of its "
            f"{len(needed)} tensors differ.\n{table}\nUse the file of this very network (depth, "
            "width, stem: MODEL.RESNETS.DEPTH, STEM_TYPE, STEM_OUT_CHANNELS; MODEL.TIMM.NAME)."
        )
    left_out = sorted(set(tensors) - set(renamed))
    logging.getLogger(__name__).info(
        "%s fills all %d tensors of the backbone; %d of its tensors are left out (%s)",
        file,
        len(needed),
        len(left_out),
        ", ".join(left_out[:4] + ["..."] * (len(left_out) > 4)) or "none",
    )
    return found


def detectron2_resnet_name(name: str) -> str:
    """Return Detectron2's name for a tensor of torchvision's ResNet; return other names as is."""
    for pattern, replacement in _RESNET:
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name


def adapt_published(
    weights: Mapping[str, Any], model: nn.Module, file: str, *, renames: bool, widens: bool
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """
    Adapt ImageNet weights to a model: their tensor names and their input channels.

    Args:
        weights: name in the file -> tensor.
        file: path or address of the weights.
        renames: whether to rename the tensors to the names in the model's backbone.
        widens: whether to adapt the first convolution to the model's number of image channels.

    Returns:
        the adapted weights; and a record of the settings that they expect, or None if the settings
        are unknown
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    mean = getattr(model, "pixel_mean", None)
    channels = 3 if mean is None else len(mean)
    if widens:
        weights = adapt_input_channels(weights, shapes, channels)
    if not renames:
        return weights, None
    # A timm network knows the layouts of its files.
    network: Any = next((m for m in model.modules() if hasattr(m, "to_timm_names")), None)
    renamed = imagenet_to_backbone(weights, shapes, file, network and network.to_timm_names)
    if renamed is weights:
        return weights, None
    if is_efficientnet_lite(weights):
        record = {"source": "efficientnet-lite-pytorch", "file": file, "settings": LITE_SETTINGS}
        return renamed, record
    return renamed, timm_record(network.name, file) if network and channels >= 3 else None


def adapt_input_channels(
    weights: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], channels: int
) -> Mapping[str, Any]:
    """
    Adapt the first convolution's weights to the number of image channels, as timm does.

    For one channel, the weights are summed over the colours. For several, they are repeated and
    scaled by 3 / channels. The convolution is found by its numbers of channels, since names
    differ among files. Its kernel may have another size than in the model, since a ViT's patch
    embedding is resampled later.

    Args:
        weights: name in the file -> tensor.
        shapes: shape of each tensor of the model, by name.
        channels: number of image channels.

    Returns:
        the adapted weights, or ``weights`` itself if nothing has to be adapted
    """
    if channels == 3:
        return weights
    wanted = {
        shape[0]
        for name, shape in shapes.items()
        if name.startswith("backbone.") and len(shape) == 4 and shape[1] == channels
    }
    found = {
        name: adapt_input_conv(channels, torch.as_tensor(value))
        for name, value in weights.items()
        if len(shape := tuple(getattr(value, "shape", ()))) == 4
        and (shape[0] in wanted and shape[1] == 3 and shapes.get(name) != shape)
    }
    if found:
        logging.getLogger(__name__).warning(
            "%s: made for images of 3 channels, adapted to %d", ", ".join(found), channels
        )
    return {**weights, **found} if found else weights


def timm_record(network: str, file: str) -> Mapping[str, Any] | None:
    """
    Return the record of the settings that timm's weights expect: RGB images, mean, deviation.

    Args:
        network: timm's name of the network, MODEL.TIMM.NAME.
        file: path or address of its weights. If it contains the name of timm's weights, such as
            convnext_tiny.fb_in1k, their mean and deviation are expected. Otherwise, the values of
            any of timm's weights for this network are allowed.

    Returns:
        record for :func:`.settings.check_settings`; None if timm has no weights of this network
    """
    architecture = network.partition(".")[0]
    names = timm.list_pretrained(f"{architecture}.*")
    # The longest, since "x.in22k_ft_in1k" holds "x.in22k".
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
    """Scale the mean or deviation of images in 0..1 to images in 0..255."""
    return tuple(round(255 * value, 3) for value in values)
