"""Backbones of timm with Detectron2's interface: HRNet, ConvNeXt, Swin, EfficientNet, ViT ..."""

import math
import sys
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import timm
import torch
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, Backbone
from timm.layers import DropPath, LayerNorm2d
from timm.models.hrnet import HighResolutionModule
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from torch import Tensor, nn

from ocr_panoptic.errors import UserError

from .timm_network import (
    Training,
    create_features,
    create_network,
    is_plain,
    network_options,
    takes_any_size,
    training_of_parameters,
    truncated_network,
)
from .timm_parts import BilinearFusion, SwinBlock, SwinV2Block, convert_norms, fold_network, replace

OUTPUT_NORMS = ("", "LN")


class TimmBackbone(Backbone):
    """
    The feature maps of a timm network with random weights, for images of any size.

    Args:
        name: name of a timm model, see :func:`.create_features`.
        features: names of the features to compute. Parts of the network after the last feature are
            removed. If the list is empty or has an unknown name, all features are kept, so that the
            caller can name them in its error.
        output_stride: 32, or 16 or 8 for networks that timm can dilate (ResNets, EfficientNets).
        norm: kind of the batch norms, see :func:`.convert_norms`.
        output_norm: "LN" for a layer norm over the channels of each feature: the network's last
            norm in a plain ViT, new norms elsewhere. "" for no norm.
        patch_size: see :func:`.network_options`.
        align_corners, enlarge_twice: arguments of HRNet's :class:`.BilinearFusion`.
        frozen: do not train: no gradients, and batch norms use running statistics.
        drop_path: probability in training that an image skips the last residual block (stochastic
            depth); it rises linearly from 0 at the first block.
        in_channels: number of channels of the images.

    Attributes:
        known: shapes of all features of the network, under timm's module names.
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
        if output_norm not in OUTPUT_NORMS:
            raise UserError(f'MODEL.TIMM.OUTPUT_NORM is {output_norm}; it is "LN" or ""')
        self.name = name
        self.frozen = frozen
        self._options = {
            "output_stride": output_stride,
            "patch_size": patch_size,
            "in_channels": in_channels,
        }
        network, self.known = create_features(name, **self._options, drop_path=drop_path)
        read = self._choose(features)
        count = 1 + list(self.known).index(read[-1])
        self._shapes = dict(list(self.known.items())[:count])
        body = truncated_network(network, count, final_norm=output_norm == "LN")
        if drop_path and not any(isinstance(m, DropPath) and m.drop_prob for m in body.modules()):
            raise UserError(
                f"MODEL.TIMM.DROP_PATH is {drop_path}, but timm's {name} leaves out no blocks. "
                "Set it to 0."
            )
        body = convert_norms(body, norm)
        fusion = partial(BilinearFusion, align_corners=align_corners, enlarge_twice=enlarge_twice)
        replace(body, HighResolutionModule, fusion)
        # Each row of HRNet's last exchange makes up one feature.
        for exchange in [m for m in body.modules() if isinstance(m, BilinearFusion)][-1:]:
            stages = [feature for feature in self.known if feature.startswith("stage")]
            for stage, row in zip(stages, exchange.fuse_layers, strict=True):
                row.requires_grad_(stage in read)
        replace(body, SwinTransformerBlock, SwinBlock)
        replace(body, SwinTransformerV2Block, SwinV2Block)
        self.body = body
        own_norm = is_plain(name) and not isinstance(body.model.norm, nn.Identity)
        if output_norm == "LN" and not own_norm:
            self.output_norms = nn.ModuleDict(
                {key.replace(".", "-"): LayerNorm2d(self.known[key].channels) for key in read}
            )
        strides = [shape.stride for shape in self.known.values()]
        self._multiple = 0 if takes_any_size(name) else math.lcm(*strides)
        if frozen:
            self.requires_grad_(False)

    def _choose(self, features: Collection[str]) -> list[str]:
        """Return the features to compute, in the network's order."""
        read = [feature for feature in self.known if feature in features]
        return read if read and len(read) == len(set(features)) else list(self.known)

    @property
    def size_divisibility(self) -> int:
        """Number that must divide the images' sides; 0 for images of any size."""
        return self._multiple

    def train(self, mode: bool = True) -> "TimmBackbone":
        """Set the mode; a frozen network stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """
        Return feature maps [N, C, H / stride, W / stride], rounded up, under timm's module names.

        Images are [N, in_channels, H, W], with sides that are multiples of
        :attr:`size_divisibility`. In training, a frozen network computes in the precision of its
        weights, whatever SOLVER.AMP is.
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

    def training_of_parameters(self, layer_decay: float) -> dict[str, Training]:
        """Return how timm trains each parameter, see :func:`.training_of_parameters`."""
        found = training_of_parameters(self.name, self.body, layer_decay)
        return {f"body.{name}": training for name, training in found.items()}

    def fold_norms(self) -> None:
        """Fold the batch norms into their convolutions, in place; see :func:`.fold_network`."""
        fold_network(self.body, self._shapes)

    def output_shape(self) -> dict[str, ShapeSpec]:
        return dict(self._shapes)

    def to_timm_names(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """
        Return weights with timm's names, and with embeddings resampled to this network's patches.

        Args:
            weights: weights of this network's classifier or pre-training, in any layout that timm
                reads. If timm does not know the layout, they are returned unchanged.
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
            return weights  # of another network; comparing the names will show that


def timm_arguments(cfg: CfgNode, input_shape: ShapeSpec) -> dict[str, Any]:
    """Return the arguments of :class:`TimmBackbone` for MODEL.TIMM and the images."""
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
    """Build the network of MODEL.TIMM, with the features that MODEL.SEM_SEG_HEAD names."""
    head = cfg.MODEL.SEM_SEG_HEAD
    features = set(head.IN_FEATURES)
    if features and head.NAME == "ContextSemSegHead":  # the head refuses an empty list
        features.update(head.COARSE_IN_FEATURES)
    return TimmBackbone(features=features, **timm_arguments(cfg, input_shape))
