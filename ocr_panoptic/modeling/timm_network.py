"""Creates timm networks for images of any size, and tells how timm trains their parameters."""

from collections.abc import Collection
from typing import Any, NamedTuple

import timm
import torch
from detectron2.layers import ShapeSpec
from timm.models._features import FeatureGetterNet, FeatureListNet
from timm.models.efficientnet import EfficientNetFeatures
from timm.models.eva import Eva
from timm.models.mobilenetv3 import MobileNetV3Features
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

from ocr_panoptic.errors import UserError


class Training(NamedTuple):
    """
    How a parameter is trained: ``lr_factor`` of its layer, and whether weight decay applies.

    Biases, norms, layer scales, position embeddings and tokens have no weight decay.
    """

    lr_factor: float
    decays: bool


def create_network(name: str, **options: object) -> nn.Module:
    """Call ``timm.create_model`` for random weights, on the "meta" device too."""
    is_meta = torch.get_default_device().type == "meta"
    try:
        network = timm.create_model(name, pretrained=False, **options)
    except NotImplementedError:
        if not is_meta:
            raise
        # RegNet computes its widths, and "meta" has no values.
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            network = timm.create_model(name, pretrained=False, **options)
    return network.to("meta") if is_meta else network  # DINOv3's frequencies are on the CPU


def training_of_parameters(
    name: str, features: nn.Module, layer_decay: float
) -> dict[str, Training]:
    """
    Return how timm trains each parameter of ``features``, by ``param_groups_layer_decay``.

    Register tokens, which timm forgets, are trained in the same way as the class token.

    Args:
        name: name of the network.
        features: the network with ``features_only``, which renames some parameters and lacks the
            last.
        layer_decay: lr_factor is layer_decay ** (number of later layers, including the classifier).
            timm's ``group_matcher`` defines the layers; a layer is usually a block.
    """
    with torch.device("meta"):
        network = create_network(name, num_classes=1)  # DINOv2's default has no classifier
    names = {parameter: key for key, parameter in network.named_parameters()}
    exempt: Collection[str] = getattr(network, "no_weight_decay", tuple)()
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
    # timm renames "stages.0.blocks" to "stages_0.blocks", or adds the prefix "model.".
    known = {key.replace(".", "_"): training for key, training in known.items()}
    found = {}
    for key, _ in features.named_parameters():
        form = key.removeprefix("model.").replace(".", "_")
        if form not in known:
            raise UserError(f"timm's {name} has no parameter {key}, so its layer is unknown")
        found[key] = known[form]
    return found


# timm's modules. Networks with one stride, in which every block is a feature:
_PLAIN = ("vision_transformer", "deit", "eva")
_SWIN = ("swin_transformer", "swin_transformer_v2")
# Networks whose images need sides that are multiples of all strides:
_PATCHED = (*_PLAIN, *_SWIN, "convnext")
# Networks with padded convolutions, which take images of any size:
_PADDED = ("resnet", "regnet", "hrnet", "hrnet2x", "efficientnet", "mobilenetv3", "pvt_v2")
_STAGED = (EfficientNetFeatures, MobileNetV3Features)
# Options that let the networks take images of any size.
_OPTIONS: dict[str, dict[str, object]] = {
    "hrnet": {"feature_location": ""},  # the stages, not the classification head's features
    # Swin pads to its windows, whatever the size. In its last stage, every second block shifts
    # them, as in the published detectors: timm omits that if a classifier's map is one window
    # large.
    **dict.fromkeys(_SWIN, {"strict_img_size": False, "always_partition": True}),
    **dict.fromkeys(_PLAIN, {"dynamic_img_size": True}),
}


def network_options(
    name: str, *, output_stride: int = 32, patch_size: int = 0, in_channels: int = 3
) -> dict[str, object]:
    """
    Return the options of ``timm.create_model`` with which the network takes images of any size.

    Args:
        name: name of a timm model.
        output_stride: 32, or 16 or 8 for networks that timm can dilate.
        patch_size: patch of a plain ViT in pixels; 0 for the patch of its weights. The number of
            position embeddings stays the same.
        in_channels: number of channels of the images.
    """
    options = {"in_chans": in_channels, **_OPTIONS.get(_module(name), {})}
    if output_stride != 32:
        options["output_stride"] = output_stride
    if patch_size:
        if not is_plain(name):
            raise UserError(
                f"MODEL.TIMM.PATCH_SIZE is {patch_size}, but MODEL.TIMM.NAME {name} is not a plain "
                "ViT. Set it to 0."
            )
        with torch.device("meta"):
            vit: VisionTransformer | Eva = create_network(name)
        sides = tuple(n * patch_size for n in vit.patch_embed.grid_size)
        options |= {"patch_size": patch_size, "img_size": sides}
    return options


def create_features(
    name: str,
    *,
    output_stride: int = 32,
    patch_size: int = 0,
    in_channels: int = 3,
    drop_path: float = 0.0,
) -> tuple[nn.Module, dict[str, ShapeSpec]]:
    """
    Create a network with random weights; timm never downloads weights here.

    Args:
        name: name of a timm model from one of the families above.
        output_stride, patch_size, in_channels: arguments of :func:`network_options`.
        drop_path: see :class:`.TimmBackbone`.

    Returns:
        (network for :func:`truncated_network`, shapes of its features under timm's module names).
        Every stage of an EfficientNet or MobileNet and every block of a plain ViT is a feature.
    """
    families = (*_PADDED, *_PATCHED)
    if _module(name) not in ("", *families):
        raise UserError(
            f"MODEL.TIMM.NAME is {name}, a network of timm's module {_module(name)}; the families "
            f"that can be a backbone are {', '.join(families)}"
        )
    options = network_options(
        name, output_stride=output_stride, patch_size=patch_size, in_channels=in_channels
    )
    if drop_path:
        options["drop_path_rate"] = drop_path
    network: Any  # timm has no types
    try:
        network = create_network(name, features_only=not is_plain(name), **options)
    except (RuntimeError, TypeError, NotImplementedError, AssertionError) as e:
        raise UserError(
            f"MODEL.TIMM.NAME {name} with OUTPUT_STRIDE {output_stride}: timm says {e}. "
            "Use hrnet_w18, hrnet_w32, hrnet_w48, convnext_tiny, swin_tiny_patch4_window7_224 "
            "(stride 32), resnet18 or tf_efficientnet_lite0 (32, 16, 8)."
        ) from e
    info = list(network.feature_info)
    shapes = {f["module"]: ShapeSpec(channels=f["num_chs"], stride=f["reduction"]) for f in info}
    if isinstance(network, _STAGED):
        shapes = {}
        for i, stage in enumerate(network.blocks):
            convs = [module for module in stage.modules() if isinstance(module, nn.Conv2d)]
            stride = next(f["reduction"] for f in info if f["stage"] > i)
            shapes[f"blocks.{i}"] = ShapeSpec(channels=convs[-1].out_channels, stride=stride)
    return network, shapes


def truncated_network(network: nn.Module, count: int, final_norm: bool) -> nn.Module:
    """
    Return a network of :func:`create_features` that lists the maps of its first ``count`` features.

    Later parts are removed. ``final_norm`` applies the last norm of a plain ViT to its maps.
    """
    if isinstance(network, _STAGED):
        return EfficientNetStages(network, count)
    if isinstance(network, FeatureListNet):
        names = list(network)
        for name in names[names.index(list(network.return_layers)[count - 1]) + 1 :]:
            del network[name]
    if isinstance(network, VisionTransformer | Eva):
        return FeatureGetterNet(network, list(range(count)), norm=final_norm)
    return network


class EfficientNetStages(nn.Module):
    """
    The maps of the first stages of timm's EfficientNet or MobileNet.

    timm itself returns only the last stage of each stride.

    Args:
        network: network whose parts are used.
        count: number of stages.
    """

    def __init__(self, network: EfficientNetFeatures | MobileNetV3Features, count: int):
        super().__init__()
        self.conv_stem, self.bn1 = network.conv_stem, network.bn1
        self.act1 = getattr(network, "act1", nn.Identity())  # only a MobileNet has it
        self.blocks = network.blocks[:count]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the stages' maps [N, C, H / stride, W / stride] of images [N, C, H, W]."""
        x, maps = self.act1(self.bn1(self.conv_stem(x))), []
        for stage in self.blocks:
            x = stage(x)
            maps.append(x)
        return maps


def is_plain(name: str) -> bool:
    """Return whether the network is a ViT whose blocks all have maps of the same size."""
    return _module(name) in _PLAIN


def takes_any_size(name: str) -> bool:
    """Return whether images may have sides that are not multiples of the network's strides."""
    return _module(name) in _PADDED


def _module(name: str) -> str:
    """Return timm's module of a network, such as "swin_transformer"; "" if it is unknown."""
    try:
        return timm.model_entrypoint(name.partition(".")[0]).__module__.rpartition(".")[2]
    except KeyError:  # create_model has the better message
        return ""
