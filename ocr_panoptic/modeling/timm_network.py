"""A network of timm by its name: made, with feature maps of images of any size, and what timm says
of how its parameters are trained."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import timm
import torch
from detectron2.layers import ShapeSpec
from timm.models._features import FeatureGetterNet
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

from ocr_panoptic.errors import UserError


class Training(NamedTuple):
    """
    Attributes:
        lr_factor: of its layer.
        decays: whether it has weight decay: biases, norms, layer scales, position embeddings and
            tokens have none.
    """

    lr_factor: float
    decays: bool


def create_network(name: str, **options: object) -> nn.Module:
    """``timm.create_model`` with random weights, on the "meta" device too."""
    is_meta = torch.get_default_device().type == "meta"
    try:
        network = timm.create_model(name, pretrained=False, **options)
    except NotImplementedError:
        if not is_meta:
            raise
        with torch.device("cpu"):  # RegNet computes its widths, and there are no values on "meta"
            network = timm.create_model(name, pretrained=False, **options)
    return network.to("meta") if is_meta else network  # DINOv3's frequencies are on the CPU


def training_of_parameters(
    name: str, features: nn.Module, layer_decay: float
) -> dict[str, Training]:
    """
    Return how timm trains a network: its ``param_groups_layer_decay``, of the whole classifier.
    Register tokens, which timm forgets, are trained as the class token.

    Args:
        name: of the network.
        features: it with ``features_only``, which has other names for some parameters and lacks the
            last ones.
        layer_decay: lr_factor is layer_decay ** (layers behind it, the classifier counting as one).
            What a layer is says the ``group_matcher`` of timm's network; mostly it is a block.

    Returns:
        of each parameter of ``features``

    Raises:
        ValueError: one of them is unknown to timm's network.
    """
    with torch.device("meta"):
        network = create_network(name, num_classes=1)  # DINOv2's has no classifier of its own
    names = {parameter: key for key, parameter in network.named_parameters()}
    exempt = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    groups = param_groups_layer_decay(
        network, weight_decay=1.0, no_weight_decay_list=exempt, layer_decay=layer_decay
    )
    known = {
        names[parameter]: Training(group["lr_scale"], group["weight_decay"] > 0)
        for group in groups
        for parameter in group["params"]
    }
    if {"cls_token", "reg_token"} <= known.keys():
        known["reg_token"] = known["cls_token"]
    # timm makes "stages_0.blocks" of "stages.0.blocks", or puts "model." first.
    known = {key.replace(".", "_"): training for key, training in known.items()}
    found = {}
    for key, _ in features.named_parameters():
        form = key.removeprefix("model.").replace(".", "_")
        if form not in known:
            raise UserError(
                f"timm's {name} has no parameter {key}, so that nothing says which layer it is of"
            )
        found[key] = known[form]
    return found


# Networks of one stride whose every block is a feature, by timm's modules.
_PLAIN = ("vision_transformer", "deit", "eva")
# Swin pads to its windows, whatever the size. Every second block of its last stage shifts them, as
# in the published detectors: timm leaves that out where a classifier's map is one window large.
_SWIN = {"strict_img_size": False, "always_partition": True}
# What lets networks take images of any size, by timm's modules.
_OPTIONS: dict[str, dict[str, object]] = {
    "hrnet": {"feature_location": ""},  # the plain stages, not the classification head's
    **dict.fromkeys(("swin_transformer", "swin_transformer_v2"), _SWIN),
    # Position embeddings are interpolated to the number of patches.
    **dict.fromkeys(_PLAIN, {"dynamic_img_size": True}),
}


def network_options(
    name: str, *, output_stride: int = 32, patch_size: int = 0, in_channels: int = 3
) -> dict[str, object]:
    """
    Return the options of ``timm.create_model`` with which the network takes images of any size.

    Args:
        name: of a timm model.
        output_stride: 32, or 16 or 8 for networks that timm can dilate.
        patch_size: of a plain ViT, in pixels; 0 for that of its weights. There are as many position
            embeddings as these have.
        in_channels: of the images.

    Raises:
        ValueError: a patch size for a network without patches.
    """
    options = {"in_chans": in_channels, **_OPTIONS.get(_module(name), {})}
    if output_stride != 32:
        options["output_stride"] = output_stride
    if patch_size:
        if not is_plain(name):
            raise UserError(
                f"MODEL.TIMM.PATCH_SIZE is {patch_size}, but MODEL.TIMM.NAME {name} is no plain "
                "ViT. Set it to 0."
            )
        with torch.device("meta"):
            grid = create_network(name).patch_embed.grid_size
        options |= {"patch_size": patch_size, "img_size": tuple(n * patch_size for n in grid)}
    return options


def create_features(
    name: str,
    *,
    output_stride: int = 32,
    patch_size: int = 0,
    in_channels: int = 3,
    final_norm: bool = False,
    drop_path: float = 0.0,
) -> nn.Module:
    """
    A network with random weights; timm never asks the internet for others.

    Args:
        name: of a timm model with ``features_only``. Of a plain ViT every block is a feature.
        output_stride, patch_size, in_channels: of :func:`network_options`.
        final_norm: the features of a plain ViT go through its last norm.
        drop_path: see :class:`.TimmBackbone`.

    Raises:
        ValueError: timm has no such network, or not with these options.
    """
    options = network_options(
        name, output_stride=output_stride, patch_size=patch_size, in_channels=in_channels
    )
    if drop_path:
        options["drop_path_rate"] = drop_path
    try:
        network = create_network(name, features_only=not is_plain(name), **options)
    except (RuntimeError, TypeError, NotImplementedError, AssertionError) as e:
        raise UserError(
            f"MODEL.TIMM.NAME {name} with OUTPUT_STRIDE {output_stride}: timm says {e}. "
            "Use hrnet_w18, hrnet_w32, hrnet_w48, convnext_tiny, swin_tiny_patch4_window7_224 "
            "(stride 32), resnet18 or tf_efficientnet_lite0 (32, 16, 8)."
        ) from e
    if not is_plain(name):
        return network
    return FeatureGetterNet(network, list(range(len(network.feature_info))), norm=final_norm)


def is_plain(name: str) -> bool:
    """Return whether it is a ViT whose blocks all have maps of one size."""
    return _module(name) in _PLAIN


def _module(name: str) -> str:
    """timm's module of a network, such as "swin_transformer"; "" for an unknown network."""
    try:
        return timm.model_entrypoint(name.partition(".")[0]).__module__.rpartition(".")[2]
    except KeyError:  # create_model says it better
        return ""


def needed_multiple(
    name: str,
    maps_of: Callable[[Tensor], Mapping[str, Tensor]],
    shapes: Mapping[str, ShapeSpec],
    in_channels: int,
) -> int:
    """
    Return what the sides of images have to be multiples of, which black images show.

    Args:
        name: of the network, for messages.
        maps_of: its maps of images [1, in_channels, H, W], in evaluation mode.
        shapes: what it says of them.
        in_channels: of the images.

    Returns:
        0 where a map of an image of any size has ceil(side / stride) pixels, as with padded
        convolutions; the least common multiple of the strides where pixels of the last rows would
        be left out (ConvNeXt) or are refused (ViT, Swin)

    Raises:
        ValueError: the maps of such multiples are not as large as the strides say: the network is
            for images of one size, or its convolutions have no padding.
    """
    multiple = math.lcm(*(shape.stride for shape in shapes.values()))
    size = (3 * multiple, 5 * multiple)
    try:
        found = _sizes(maps_of, (in_channels, *size))
    except (RuntimeError, AssertionError) as e:
        raise UserError(
            f"MODEL.TIMM.NAME {name} does not take images of {size[0]}x{size[1]} pixels, and it "
            f"has to take any multiple of its strides: timm says {e}. {_ADVICE}"
        ) from e
    for key, expected in _expected(shapes, size).items():
        if found[key] != expected:
            raise UserError(
                f"MODEL.TIMM.NAME {name} has {found[key]} as its feature {key} for an image of "
                f"{size[0]}x{size[1]} pixels, and its stride {shapes[key].stride} needs {expected}"
                f". {_ADVICE}"
            )
    odd = (3 * multiple + 1, 4 * multiple + 3)
    try:
        return 0 if _sizes(maps_of, (in_channels, *odd)) == _expected(shapes, odd) else multiple
    except (RuntimeError, AssertionError):
        return multiple


_ADVICE = (
    "Use a network for images of any size: ResNet, HRNet, EfficientNet, MobileNet, RegNet, "
    "ConvNeXt, Swin, PVT v2, ViT, DINOv2 ..."
)


@torch.no_grad()
def _sizes(
    maps_of: Callable[[Tensor], Mapping[str, Tensor]], shape: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    return {key: tuple(map_.shape[1:]) for key, map_ in maps_of(torch.zeros(1, *shape)).items()}


def _expected(shapes: Mapping[str, ShapeSpec], size: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    return {
        key: (shape.channels, *(math.ceil(side / shape.stride) for side in size))
        for key, shape in shapes.items()
    }
