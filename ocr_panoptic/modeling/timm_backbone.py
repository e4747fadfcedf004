"""timm's networks as Detectron2 backbones: HRNet, ConvNeXt, Swin, EfficientNet, ViT, ..."""

import contextlib
import math
import sys
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import timm
import torch
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, Backbone
from timm.layers import DropPath, LayerNorm2d, convert_sync_batchnorm, freeze_batch_norm_2d
from timm.models._features import FeatureGetterNet, FeatureListNet
from timm.models.efficientnet import EfficientNetFeatures
from timm.models.hrnet import HighResolutionModule
from timm.models.mobilenetv3 import MobileNetV3Features
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

from ocr_panoptic.errors import UserError

from .timm_parts import BilinearFusion, SwinBlock, SwinV2Block, fold_network, replace

# Families, named after timm's modules. In a plain ViT, each block is a feature of the same stride.
PLAIN = ("vision_transformer", "deit", "eva")
SWIN = ("swin_transformer", "swin_transformer_v2")
# Networks that need images whose sides are multiples of all strides.
PATCHED = (*PLAIN, *SWIN, "convnext")
# Networks that pad their convolutions, and take images of any size.
PADDED = ("resnet", "regnet", "hrnet", "hrnet2x", "efficientnet", "mobilenetv3", "pvt_v2")
# Options of timm.create_model for images of any size.
OPTIONS: dict[str, dict[str, object]] = {
    "hrnet": {"feature_location": ""},  # the stages, not the classification head's features
    # Swin then pads its maps to whole windows. In its last stage, every second block shifts the
    # windows, as in the published detectors; timm omits this if a classifier's map is one window.
    **dict.fromkeys(SWIN, {"strict_img_size": False, "always_partition": True}),
    **dict.fromkeys(PLAIN, {"dynamic_img_size": True}),
}


class Training(NamedTuple):
    """How timm trains a parameter: its learning-rate factor, and whether weight decay applies."""

    lr_factor: float
    decays: bool


class TimmBackbone(Backbone):
    """
    A timm network with random weights as a Detectron2 backbone.

    The features are named after timm's modules. Every stage of an EfficientNet or MobileNet and
    every block of a plain ViT is a feature.

    Args:
        name: name of a timm model from one of the families :data:`PADDED` and :data:`PATCHED`.
        features: names of the features to compute. Parts of the network after the last of these
            features are removed. If the list is empty or has an unknown name, all features are
            computed.
        output_stride: stride of the last feature: 32, or for a ResNet or EfficientNet also 16 or 8.
        norm: kind of batch norm: "BN", "SyncBN" or "FrozenBN"; "naiveSyncBN", in configs of
            earlier versions, means "SyncBN".
        output_norm: "LN" for a layer norm over the channels of each feature, "" for no norm. A
            plain ViT uses its own last norm; other networks get new norms.
        patch_size: patch size of a plain ViT in pixels; 0 for the patch size of timm's model. The
            number of position embeddings stays the same.
        align_corners, enlarge_twice: how HRNet enlarges coarse maps, see
            :class:`.BilinearFusion`.
        frozen: whether to freeze all parameters and the statistics of batch norms.
        drop_path: probability that an image skips the last residual block in training (stochastic
            depth). Over the blocks, the probability rises linearly from 0 at the first block.

    Attributes:
        known: shapes of all features of timm's network by name, whether computed or not.
    """

    def __init__(
        self,
        name: str,
        features: Collection[str] = (),
        *,
        output_stride: int = 32,
        norm: str = "SyncBN",
        output_norm: str = "",
        patch_size: int = 0,
        align_corners: bool = False,
        enlarge_twice: bool = False,
        frozen: bool = False,
        drop_path: float = 0.0,
        in_channels: int = 3,
    ):
        super().__init__()
        self.name, self.frozen = name, frozen
        self._options = _network_options(name, output_stride, patch_size, in_channels)
        network, self.known = _create_features(name, drop_path, self._options)
        read = self._choose(features)
        count = 1 + list(self.known).index(read[-1])
        self._shapes = dict(list(self.known.items())[:count])
        is_plain = _family(name) in PLAIN
        if is_plain:
            # timm removes the blocks after the last feature, and the last norm if it is unused.
            body = FeatureGetterNet(network, list(range(count)), norm=output_norm == "LN")
        else:
            body = _truncated(network, count)
        if drop_path and not any(isinstance(m, DropPath) and m.drop_prob for m in body.modules()):
            raise UserError(_drop_path_fault(name, drop_path))
        if norm in ("SyncBN", "naiveSyncBN"):
            body = convert_sync_batchnorm(body)
        elif norm == "FrozenBN":
            body = freeze_batch_norm_2d(body)
        fusion = partial(BilinearFusion, align_corners=align_corners, enlarge_twice=enlarge_twice)
        replace(body, HighResolutionModule, fusion)
        # Each row of HRNet's last exchange computes one feature: freeze rows that no head reads.
        for exchange in [m for m in body.modules() if isinstance(m, BilinearFusion)][-1:]:
            stages = [feature for feature in self.known if feature.startswith("stage")]
            for stage, row in zip(stages, exchange.fuse_layers, strict=True):
                row.requires_grad_(stage in read)
        replace(body, SwinTransformerBlock, SwinBlock)
        replace(body, SwinTransformerV2Block, SwinV2Block)
        self.body = body
        has_norm = is_plain and not isinstance(body.model.norm, nn.Identity)
        if output_norm == "LN" and not has_norm:
            self.output_norms = nn.ModuleDict(
                {key.replace(".", "-"): LayerNorm2d(self.known[key].channels) for key in read}
            )
        if frozen:
            self.requires_grad_(False)

    def _choose(self, features: Collection[str]) -> list[str]:
        """Return the names of the features to compute, in the network's order."""
        read = [feature for feature in self.known if feature in features]
        return read if read and len(read) == len(set(features)) else list(self.known)

    @property
    def size_divisibility(self) -> int:
        """The number by which image sides have to be divisible; 0 for images of any size."""
        strides = (shape.stride for shape in self.known.values())
        return 0 if _family(self.name) in PADDED else math.lcm(*strides)

    def train(self, mode: bool = True) -> "TimmBackbone":
        """Set training or evaluation mode; a frozen network stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """
        Return the feature maps by name, each [N, C, ceil(H / stride), ceil(W / stride)].

        H and W have to be multiples of :attr:`size_divisibility`, unless this is 0. In training, a
        frozen network ignores SOLVER.AMP and computes in the precision of its weights.
        """
        if not (self.frozen and self.training):
            return self._maps(x)
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            return self._maps(x)

    def _maps(self, x: Tensor) -> dict[str, Tensor]:
        maps = self.body(x)
        if getattr(self.body, "output_fmt", "NCHW") == "NHWC":
            maps = [y.permute(0, 3, 1, 2) for y in maps]
        maps = dict(zip(self._shapes, maps))
        for key, norm in getattr(self, "output_norms", {}).items():
            maps[key.replace("-", ".")] = norm(maps[key.replace("-", ".")])
        return maps

    def output_shape(self) -> dict[str, ShapeSpec]:
        return dict(self._shapes)

    def fold_norms(self) -> None:
        """Fold batch norms into the convolutions before them, in place (:func:`.fold_network`)."""
        fold_network(self.body, self._shapes)

    def training_of_parameters(self, layer_decay: float) -> dict[str, Training]:
        """
        Return a dict from parameter names to timm's training settings.

        A parameter's learning rate is multiplied by layer_decay ** (number of later layers,
        including the classifier). A layer is usually one block of the network.
        """
        with torch.device("meta"):  # num_classes adds a classifier, which DINOv2 lacks by default
            network = _create_network(self.name, num_classes=1)
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
        # timm forgets register tokens.
        if {"cls_token", "reg_token"} <= known.keys():
            known["reg_token"] = known["cls_token"]
        known = {_timm_key(key): training for key, training in known.items()}
        return {f"body.{key}": known[_timm_key(key)] for key, _ in self.body.named_parameters()}

    def to_own_names(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """
        Rename the weights of timm's network, or of a file that timm can read, to this backbone's.

        Position embeddings are resampled to this network's patch size. Tensors that this backbone
        does not have keep their names.
        """
        module = sys.modules[timm.model_entrypoint(self.name).__module__]
        if adapt := getattr(module, "checkpoint_filter_fn", None):
            with torch.device("meta"):
                whole = _create_network(self.name, **self._options)
            # Weights of another network raise errors; the caller finds out by comparing the names.
            with contextlib.suppress(LookupError, AttributeError, RuntimeError, ValueError):
                weights = adapt(dict(weights), whole)
        own = {_timm_key(name): f"body.{name}" for name in self.body.state_dict()}
        return {own.get(_timm_key(name), name): tensor for name, tensor in weights.items()}


def _timm_key(name: str) -> str:
    """
    Return what the names of a tensor in timm's network and in its network for features share.

    In the latter, "stages.0" can be "stages_0", and all names can have a prefix "model.".
    """
    return name.removeprefix("model.").replace(".", "_")


def _family(name: str) -> str:
    """Return the name of the timm module that defines a network, such as "swin_transformer"."""
    entry = timm.model_entrypoint(name) if timm.is_model(name) else None
    family = entry.__module__.rpartition(".")[2] if entry else ""
    if family not in (*PADDED, *PATCHED):
        raise UserError(
            f"MODEL.TIMM.NAME is {name}; expected a network from one of timm's modules "
            f"{', '.join((*PADDED, *PATCHED))}"
        )
    return family


def _create_network(name: str, **options: object) -> nn.Module:
    """Create a timm network with random weights on the default device, which can be "meta"."""
    is_meta = torch.get_default_device().type == "meta"
    try:
        network = timm.create_model(name, pretrained=False, **options)
    except RuntimeError:  # such as NotImplementedError
        if not is_meta:
            raise
        # Some networks compute widths or drop paths with tensors, which have no values on "meta".
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            network = timm.create_model(name, pretrained=False, **options)
    return network.to("meta") if is_meta else network  # timm puts DINOv3's frequencies on the CPU


def _network_options(
    name: str, output_stride: int, patch_size: int, in_channels: int
) -> dict[str, object]:
    """Translate arguments of :class:`TimmBackbone` into options of ``timm.create_model``."""
    family = _family(name)
    options = {"in_chans": in_channels, **OPTIONS.get(family, {})}
    if output_stride != 32:
        options["output_stride"] = output_stride
    if patch_size:
        if family not in PLAIN:
            raise UserError(
                f"MODEL.TIMM.PATCH_SIZE is {patch_size}, but MODEL.TIMM.NAME {name} is not a plain "
                "ViT. Set it to 0."
            )
        with torch.device("meta"):
            vit: Any = _create_network(name)
        sides = tuple(n * patch_size for n in vit.patch_embed.grid_size)
        options |= {"patch_size": patch_size, "img_size": sides}
    return options


def _drop_path_fault(name: str, drop_path: float) -> str:
    return f"MODEL.TIMM.DROP_PATH is {drop_path}, but timm's {name} has no drop path. Set it to 0."


STAGED = (EfficientNetFeatures, MobileNetV3Features)


def _create_features(
    name: str, drop_path: float, options: Mapping[str, object]
) -> tuple[nn.Module, dict[str, ShapeSpec]]:
    """Create a timm network, and return it with the shapes of all its features by name."""
    is_plain = _family(name) in PLAIN
    if drop_path:
        options = {**options, "drop_path_rate": drop_path}
    network: Any  # timm has no types
    try:
        network = _create_network(name, features_only=not is_plain, **options)
    except (RuntimeError, TypeError, NotImplementedError, AssertionError) as e:
        if "drop_path_rate" in str(e):
            raise UserError(_drop_path_fault(name, drop_path)) from e
        raise UserError(
            f"timm cannot create {name} (MODEL.TIMM.NAME) with MODEL.TIMM.OUTPUT_STRIDE "
            f"{options.get('output_stride', 32)}: {e!r}. ResNets and EfficientNets support 32, 16 "
            "and 8, other networks only 32."
        ) from e
    info = list(network.feature_info)
    shapes = {f["module"]: ShapeSpec(channels=f["num_chs"], stride=f["reduction"]) for f in info}
    if isinstance(network, STAGED):  # timm lists only the last stage of each stride
        shapes = {}
        for i, stage in enumerate(network.blocks):
            convs = [module for module in stage.modules() if isinstance(module, nn.Conv2d)]
            stride = next(f["reduction"] for f in info if f["stage"] > i)
            shapes[f"blocks.{i}"] = ShapeSpec(channels=convs[-1].out_channels, stride=stride)
    return network, shapes


def _truncated(network: nn.Module, count: int) -> nn.Module:
    """Return a truncated network, whose output is the list of its first ``count`` features."""
    if isinstance(network, STAGED):
        return EfficientNetStages(network, count)
    if isinstance(network, FeatureListNet):
        names = list(network)
        for name in names[names.index(list(network.return_layers)[count - 1]) + 1 :]:
            del network[name]
    return network


class EfficientNetStages(nn.Module):
    """
    A network of the first ``count`` stages of an EfficientNet or MobileNet.

    The forward pass returns a list with the output of each stage.
    """

    def __init__(self, network: EfficientNetFeatures | MobileNetV3Features, count: int):
        super().__init__()
        self.conv_stem, self.bn1 = network.conv_stem, network.bn1
        self.act1 = getattr(network, "act1", nn.Identity())  # only a MobileNet has it
        self.blocks = network.blocks[:count]

    def forward(self, x: Tensor) -> list[Tensor]:
        x, maps = self.act1(self.bn1(self.conv_stem(x))), []
        for stage in self.blocks:
            x = stage(x)
            maps.append(x)
        return maps


def timm_arguments(cfg: CfgNode, input_shape: ShapeSpec) -> dict[str, Any]:
    """Read :class:`TimmBackbone`'s constructor arguments (except ``features``) from a config."""
    network = cfg.MODEL.TIMM
    return {
        "name": network.NAME,
        "output_stride": network.OUTPUT_STRIDE,
        "norm": network.NORM,
        "output_norm": network.OUTPUT_NORM,
        "patch_size": network.PATCH_SIZE,
        "align_corners": cfg.MODEL.ALIGN_CORNERS,
        "enlarge_twice": network.ENLARGE_TWICE,
        "frozen": network.FROZEN,
        "drop_path": network.DROP_PATH,
        "in_channels": input_shape.channels,
    }


@BACKBONE_REGISTRY.register()
def build_timm_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> TimmBackbone:
    """Build the timm network of a config, with the features that the semantic head reads."""
    head = cfg.MODEL.SEM_SEG_HEAD
    features = set(head.IN_FEATURES)
    if features and head.NAME == "ContextSemSegHead":  # the head refuses an empty list
        features.update(head.COARSE_IN_FEATURES)
    return TimmBackbone(features=features, **timm_arguments(cfg, input_shape))
