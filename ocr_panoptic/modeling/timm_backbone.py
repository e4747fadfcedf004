"""Backbones of timm with Detectron2's interface: HRNet, ConvNeXt, Swin, EfficientNet, ViT ..."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import timm
import torch
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, Backbone
from timm.layers import DropPath, LayerNorm2d
from timm.models.efficientnet import EfficientNetFeatures
from timm.models.hrnet import HighResolutionModule
from torch import Tensor, nn

from ocr_panoptic.errors import UserError

from .timm_network import (
    Training,
    create_features,
    create_network,
    is_plain,
    needed_multiple,
    network_options,
    training_of_parameters,
)
from .timm_norms import fold_network, with_norm
from .timm_parts import BilinearFusion, pad_before_shifting, replace

OUTPUT_NORMS = ("", "LN")

# What black images have shown of networks: the same of each that is built with equal arguments.
_SHOWN: dict[tuple, Any] = {}


class TimmBackbone(Backbone):
    """
    The feature maps of a timm network for images of any size. Random weights: files come by
    MODEL.WEIGHTS, and timm never asks the network.

    Args:
        name: of a timm model with ``features_only``, such as hrnet_w48 or resnet18. Of an
            EfficientNet every stage is a feature, blocks.0 to blocks.6; of a plain ViT every block.
        output_stride: 32, or 16 or 8 for networks that timm can dilate (ResNets, EfficientNets).
        norm: "BN", "SyncBN" or "FrozenBN", of its batch norms.
        output_norm: "LN" for a layer norm over the channels of each feature that is read: the
            network's last one where that is a plain ViT's, new ones else. "" for none.
        patch_size: see :func:`.create_features`.
        align_corners, enlarge_twice: of HRNet's :class:`.BilinearFusion`.
        frozen: nothing is learnt: no gradient, and batch norms use their running statistics.
        drop_path: chance in training that the last of its residual blocks is left out for an image
            (stochastic depth); those before it have less, linearly from 0.
        in_channels: of the images.

    Raises:
        ValueError: unknown name or norm, a stride that the network does not have, a network for
            images of one size, or drop path in one that has none.
    """

    def __init__(
        self,
        name: str,
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
        if output_norm not in OUTPUT_NORMS:
            raise UserError(f'MODEL.TIMM.OUTPUT_NORM is {output_norm}; it is "LN" or ""')
        self.name = name
        self.frozen = frozen
        self._in_channels = in_channels
        self._options = {
            "output_stride": output_stride,
            "patch_size": patch_size,
            "in_channels": in_channels,
        }
        body = create_features(
            name, **self._options, final_norm=output_norm == "LN", drop_path=drop_path
        )
        if drop_path and not any(isinstance(m, DropPath) and m.drop_prob for m in body.modules()):
            raise UserError(
                f"MODEL.TIMM.DROP_PATH is {drop_path}, but timm's {name} leaves out no blocks. "
                "Set it to 0."
            )
        body = with_norm(body, norm)
        pad_before_shifting(body)
        fusion = partial(BilinearFusion, align_corners=align_corners, enlarge_twice=enlarge_twice)
        replace(body, HighResolutionModule, fusion)
        self.body = body
        own_norm = is_plain(name) and not isinstance(body.model.norm, nn.Identity)
        self._has_new_norms = output_norm == "LN" and not own_norm
        if isinstance(body, EfficientNetFeatures):
            self._shapes = _read_all_stages(body, in_channels)
        else:
            self._shapes = {
                feature["module"]: ShapeSpec(
                    channels=feature["num_chs"], stride=feature["reduction"]
                )
                for feature in body.feature_info.get_dicts()
            }
        self._arguments = (name, norm, output_norm, *self._options.values())
        self.eval()
        self._multiple = self._once(
            "multiple", lambda: needed_multiple(name, self._maps, self._shapes, in_channels)
        )
        self.train()
        if frozen:
            self.requires_grad_(False)

    @property
    def size_divisibility(self) -> int:
        """Sides of images are multiples of it; 0 for images of any size."""
        return self._multiple

    def train(self, mode: bool = True) -> "TimmBackbone":
        """A frozen network stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """
        Args:
            x: [N, in_channels, H, W], multiples of :attr:`size_divisibility`

        Returns:
            feature maps by timm's name of the module, [N, C, H / stride, W / stride], rounded up.
            In training a frozen network computes them in the precision of its weights, whatever
            SOLVER.AMP says.
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

    def read(self, features: Iterable[str]) -> None:
        """
        Say which features are read. Norms of them are added (``output_norm``), stages of an
        EfficientNet and blocks of a ViT behind the last of them are left out, and what makes up
        others alone is frozen: of HRNet the last exchange between its branches, of a ResNet the
        stages behind. DistributedDataParallel waits for the gradient of every parameter that is not
        frozen.

        Args:
            features: their names; those of another backbone are not looked at.
        """
        features = set(features)
        read = [name for name in self._shapes if name in features]
        if not read:
            return
        self._truncate(list(self._shapes).index(read[-1]) + 1)
        if self._has_new_norms:
            self.output_norms = nn.ModuleDict(
                {name.replace(".", "-"): LayerNorm2d(self._shapes[name].channels) for name in read}
            )
            self.output_norms.requires_grad_(not self.frozen)
        self._freeze_unread(read)

    def _truncate(self, count: int) -> None:
        if isinstance(self.body, EfficientNetFeatures):
            self.body.blocks = self.body.blocks[:count]
        elif is_plain(self.name):
            self.body.out_indices = self.body.model.prune_intermediate_layers(
                list(range(count)), prune_norm=not self.body.norm
            )
        else:
            return
        self._shapes = dict(list(self._shapes.items())[:count])

    def _freeze_unread(self, read: list[str]) -> None:
        if self.frozen:
            return
        unread = self._once(("unread", *read), lambda: self._without_gradient(read))
        for name, parameter in self.named_parameters():
            if name in unread:
                parameter.requires_grad_(False)

    def _without_gradient(self, read: list[str]) -> set[str]:
        """Names of the parameters that do not change these features."""
        training = self.training
        side = 3 * math.lcm(*(shape.stride for shape in self._shapes.values()))
        parameters = dict(self.named_parameters())
        learnt = [p for p in parameters.values() if p.requires_grad]
        self.eval().requires_grad_(True)
        with torch.enable_grad():
            maps = self._maps(torch.zeros(1, self._in_channels, side, side))
            total = sum(maps[name].sum() for name in read)
            gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
        self.train(training).requires_grad_(False)
        for parameter in learnt:
            parameter.requires_grad_(True)
        return {name for name, found in zip(parameters, gradients, strict=True) if found is None}

    def _once(self, question: object, find: Callable[[], Any]) -> Any:
        key = (*self._arguments, question)
        if key not in _SHOWN:
            _SHOWN[key] = find()
        return _SHOWN[key]

    def training_of_parameters(self, layer_decay: float) -> dict[str, Training]:
        """Return how each parameter is trained, see :func:`.training_of_parameters`."""
        found = training_of_parameters(self.name, self.body, layer_decay)
        return {f"body.{name}": training for name, training in found.items()}

    def fold_norms(self) -> None:
        """Fold the batch norms into their convolutions, in place; see :func:`.fold_network`."""
        fold_network(self.body, self._shapes)

    def output_shape(self) -> dict[str, ShapeSpec]:
        return dict(self._shapes)

    def as_timms(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """
        Args:
            weights: of a classifier, or of pre-training, of this network, as its authors or timm
                have published it: any layout that timm itself reads.

        Returns:
            them with timm's names, and position and patch embeddings resampled to this network's
            patches; ``weights`` where timm does not know the layout
        """
        entry = timm.model_entrypoint(self.name.partition(".")[0])
        adapt = getattr(sys.modules[entry.__module__], "checkpoint_filter_fn", None)
        if adapt is None:
            return weights
        options = network_options(self.name, **self._options)
        with torch.device("meta"):
            whole = create_network(self.name, **options)
        try:
            return adapt(dict(weights), whole)
        except (KeyError, AttributeError, RuntimeError, ValueError, IndexError):
            return weights  # of another network, which the comparison of names will tell


def _read_all_stages(body: EfficientNetFeatures, in_channels: int) -> dict[str, ShapeSpec]:
    """Let timm's network return the maps of all its stages, not of the last one of each stride
    alone; their shapes, which a small image shows."""
    body._stage_out_idx = {i + 1: i for i in range(len(body.blocks))}
    side = 64
    is_training = body.training
    with torch.no_grad():
        maps = body.eval()(torch.zeros(1, in_channels, side, side))
    body.train(is_training)
    return {
        f"blocks.{i}": ShapeSpec(channels=map_.shape[1], stride=side // map_.shape[2])
        for i, map_ in enumerate(maps)
    }


def timm_arguments(cfg: CfgNode, input_shape: ShapeSpec) -> dict[str, object]:
    """Return the arguments of :class:`TimmBackbone`, by MODEL.TIMM and the images."""
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
    """The network of MODEL.TIMM, for the features that MODEL.SEM_SEG_HEAD names."""
    backbone = TimmBackbone(**timm_arguments(cfg, input_shape))
    head = cfg.MODEL.SEM_SEG_HEAD
    coarse = head.COARSE_IN_FEATURES if head.NAME == "ContextSemSegHead" else []
    backbone.read({*head.IN_FEATURES, *coarse})
    return backbone
