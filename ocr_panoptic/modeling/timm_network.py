"""A network of timm by its name, made with feature maps of images of any size, and how timm trains
its parameters."""

from typing import NamedTuple

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
    How a parameter is trained: ``lr_factor`` is that of its layer. Biases, norms, layer scales,
    position embeddings and tokens have no weight decay (``decays``).
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
        # RegNet computes its widths, and there are no values on "meta".
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
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


# By timm's modules: networks of one stride whose every block is a feature,
_PLAIN = ("vision_transformer", "deit", "eva")
_SWIN = ("swin_transformer", "swin_transformer_v2")
# those that take images whose sides are multiples of all their strides,
_OF_PATCHES = (*_PLAIN, *_SWIN, "convnext")
# and those with padded convolutions, which take images of any size.
_PADDED = ("resnet", "regnet", "hrnet", "hrnet2x", "efficientnet", "mobilenetv3", "pvt_v2")
_STAGED = (EfficientNetFeatures, MobileNetV3Features)
# What lets them take images of any size.
_OPTIONS: dict[str, dict[str, object]] = {
    "hrnet": {"feature_location": ""},  # the plain stages, not the classification head's
    # Swin pads to its windows, whatever the size. Every second block of its last stage shifts them,
    # as in the published detectors: timm leaves that out if a classifier's map is one window large.
    **dict.fromkeys(_SWIN, {"strict_img_size": False, "always_partition": True}),
    # Position embeddings are interpolated to the number of patches.
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
        patch_size: patch of a plain ViT in pixels; 0 for that of its weights. There are as many
            position embeddings as these have.
        in_channels: number of the images' channels.
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
    drop_path: float = 0.0,
) -> tuple[nn.Module, dict[str, ShapeSpec]]:
    """
    Make a network with random weights; timm never asks the internet for others.

    Args:
        name: name of a timm model of one of the families above.
        output_stride, patch_size, in_channels: arguments of :func:`network_options`.
        drop_path: see :class:`.TimmBackbone`.

    Returns:
        (network for :func:`up_to`, shapes of its features by timm's names of the modules). Every
        stage of an EfficientNet or MobileNet and every block of a plain ViT is a feature.
    """
    families = (*_PADDED, *_OF_PATCHES)
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


def up_to(network: nn.Module, count: int, final_norm: bool) -> nn.Module:
    """
    Return a network of :func:`create_features` without the parts behind its first ``count``
    features, whose maps it lists; ``final_norm`` says whether those of a plain ViT go through its
    last norm.
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
    The maps of the first stages of timm's EfficientNet or MobileNet. timm itself gives those of the
    last stage of each stride.

    Args:
        network: network whose parts are taken.
        count: number of stages.
    """

    def __init__(self, network: EfficientNetFeatures | MobileNetV3Features, count: int):
        super().__init__()
        self.conv_stem, self.bn1 = network.conv_stem, network.bn1
        self.act1 = getattr(network, "act1", nn.Identity())  # of a MobileNet
        self.blocks = network.blocks[:count]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Images [N, C, H, W] to the maps [N, C, H / stride, W / stride] of the stages."""
        x, maps = self.act1(self.bn1(self.conv_stem(x))), []
        for stage in self.blocks:
            x = stage(x)
            maps.append(x)
        return maps


def is_plain(name: str) -> bool:
    """Return whether it is a ViT whose blocks all have maps of one size."""
    return _module(name) in _PLAIN


def takes_any_size(name: str) -> bool:
    """Return whether images need not be multiples of the network's strides."""
    return _module(name) in _PADDED


def _module(name: str) -> str:
    """Return timm's module of a network, such as "swin_transformer"; "" for an unknown network."""
    try:
        return timm.model_entrypoint(name.partition(".")[0]).__module__.rpartition(".")[2]
    except KeyError:  # create_model says it better
        return ""
