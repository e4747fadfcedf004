"""Backbones of timm with Detectron2's interface: HRNet, dilated ResNets, others."""

from collections.abc import Iterable

import torch
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, Backbone
from timm.layers import DropPath
from timm.models.efficientnet import EfficientNetFeatures
from timm.models.hrnet import HighResolutionModule
from torch import Tensor, nn

from ocr_panoptic.layers import resize

from .timm_network import Training, create_network, training_of_parameters
from .timm_norms import fold_norms, with_norm


class BilinearFusion(HighResolutionModule):
    """
    HRNet's exchange between its branches as the published segmentation codes have it: coarse maps
    are enlarged bilinearly, whatever the sizes. (timm's, of a classifier, takes the nearest
    neighbours and needs sizes that fit.) Parameters and their names are timm's.

    Attributes:
        align_corners: True resizes to the size of the finer map at once, as the authors' code.
            False enlarges by the ratio of the strides first, so that pixels stay where they are,
            and resizes what does not fit after that, as mmsegmentation.
    """

    align_corners: bool

    @classmethod
    def convert(cls, module: HighResolutionModule, align_corners: bool) -> None:
        """Turn a module of timm into one of this class, in place."""
        module.__class__ = cls
        module.align_corners = align_corners
        rows = module.fuse_layers if module.num_branches > 1 else ()
        for i, row in enumerate(rows):
            for j in range(i + 1, len(row)):
                assert isinstance(row[j][2], nn.Upsample)
                row[j][2] = nn.Identity()

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        """
        Args:
            x: the maps of the branches, [N, C, h, w] each, the finest first

        Returns:
            the same, each with what it gets from the others
        """
        x = [branch(map_) for branch, map_ in zip(self.branches, x, strict=True)]
        if self.num_branches == 1:
            return x
        fused = []
        for i, row in enumerate(self.fuse_layers):
            y = row[0](x[0]) if i else x[0]
            for j in range(1, len(x)):
                coarse = row[j](x[j])
                y = y + (self._enlarge(coarse, 2 ** (j - i), x[i]) if j > i else coarse)
            fused.append(self.fuse_act(y))
        return fused

    def _enlarge(self, coarse: Tensor, factor: int, fine: Tensor) -> Tensor:
        if not self.align_corners:
            coarse = resize(coarse, tuple(factor * side for side in coarse.shape[2:]))
        return resize(coarse, fine.shape[2:], self.align_corners)


class TimmBackbone(Backbone):
    """
    The feature maps of a timm network for images of any size. Random weights: files come by
    MODEL.WEIGHTS, and timm never asks the network.

    Args:
        name: of a timm model with ``features_only``, such as hrnet_w48 or resnet18. Of an
            EfficientNet every stage is a feature, blocks.0 to blocks.6.
        output_stride: 32, or 16 or 8 for networks that timm can dilate (ResNets, EfficientNets).
        norm: "BN", "SyncBN" or "FrozenBN", of its batch norms.
        align_corners: of HRNet's :class:`BilinearFusion`.
        frozen: nothing is learnt: no gradient, and batch norms use their running statistics.
        drop_path: chance in training that the last of its residual blocks is left out for an image
            (stochastic depth); those before it have less, linearly from 0.
        in_channels: of the images.

    Raises:
        ValueError: unknown name or norm, a stride that the network does not have, or drop path in
            one that has none.
    """

    def __init__(
        self,
        name: str,
        *,
        output_stride: int = 32,
        norm: str = "SyncBN",
        align_corners: bool = False,
        frozen: bool = False,
        drop_path: float = 0.0,
        in_channels: int = 3,
    ):
        super().__init__()
        self.name = name
        self.frozen = frozen
        options = {"in_chans": in_channels}
        if name.startswith("hrnet"):
            options["feature_location"] = ""  # the plain stages, not the classification head's
        if name.startswith("swin"):
            options["strict_img_size"] = False  # pads to its windows, whatever the size
        if output_stride != 32:
            options["output_stride"] = output_stride
        if drop_path:
            options["drop_path_rate"] = drop_path
        try:
            body = create_network(name, features_only=True, **options)
        except (RuntimeError, TypeError, NotImplementedError, AssertionError) as e:
            raise ValueError(
                f"MODEL.TIMM.NAME {name} with OUTPUT_STRIDE {output_stride}: timm says {e}. "
                "Use hrnet_w18, hrnet_w32, hrnet_w48 (stride 32), resnet18 or "
                "tf_efficientnet_lite0 (32, 16, 8)."
            ) from e
        if drop_path and not any(isinstance(m, DropPath) and m.drop_prob for m in body.modules()):
            raise ValueError(
                f"MODEL.TIMM.DROP_PATH is {drop_path}, but timm's {name} leaves out no blocks. "
                "Set it to 0."
            )
        body = with_norm(body, norm)
        for module in body.modules():
            if isinstance(module, HighResolutionModule):
                BilinearFusion.convert(module, align_corners)
        self.body = body
        if isinstance(body, EfficientNetFeatures):
            self._shapes = _read_all_stages(body, in_channels)
        else:
            self._shapes = {
                feature["module"]: ShapeSpec(
                    channels=feature["num_chs"], stride=feature["reduction"]
                )
                for feature in body.feature_info.get_dicts()
            }
        if frozen:
            self.requires_grad_(False)

    def train(self, mode: bool = True) -> "TimmBackbone":
        """A frozen network stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """
        Args:
            x: [N, in_channels, H, W]

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
        return dict(zip(self._shapes, maps))

    def truncate(self, features: Iterable[str]) -> None:
        """
        Leave out the stages of an EfficientNet behind the last one that is read.

        Args:
            features: the names of those that are read.
        """
        if isinstance(self.body, EfficientNetFeatures):
            last = max((i for i, name in enumerate(self._shapes) if name in features), default=-1)
            if last >= 0:
                self.body.blocks = self.body.blocks[: last + 1]
                self._shapes = dict(list(self._shapes.items())[: last + 1])

    def freeze_unread_branches(self, features: Iterable[str]) -> None:
        """
        Freeze what makes up outputs that are not among ``features`` alone: of HRNet the last
        exchange between its branches, of a ResNet the stages after the last one that is read.
        DistributedDataParallel waits for the gradient of every parameter that is not frozen.

        Args:
            features: the names of those that are read.
        """
        exchanges = [m for m in self.body.modules() if isinstance(m, HighResolutionModule)]
        if exchanges:
            rows = exchanges[-1].fuse_layers
            for name, row in zip(list(self._shapes)[-len(rows) :], rows, strict=True):
                if name not in features:
                    row.requires_grad_(False)
        elif not isinstance(self.body, EfficientNetFeatures):  # for that see truncate
            names = list(self._shapes)
            last = max((i for i, name in enumerate(names) if name in features), default=len(names))
            for name in names[last + 1 :]:
                getattr(self.body, name).requires_grad_(False)

    def training_of_parameters(self, layer_decay: float) -> dict[str, Training]:
        """Of each parameter, see :func:`.training_of_parameters`."""
        found = training_of_parameters(self.name, self.body, layer_decay)
        return {f"body.{name}": training for name, training in found.items()}

    def fold_norms(self) -> None:
        """Fold the batch norms into their convolutions, in place; see :func:`.fold_norms`."""
        fold_norms(self.body, self._shapes)

    def output_shape(self) -> dict[str, ShapeSpec]:
        return dict(self._shapes)


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


@BACKBONE_REGISTRY.register()
def build_timm_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> TimmBackbone:
    """The network of MODEL.TIMM, for the features that MODEL.SEM_SEG_HEAD names."""
    backbone = TimmBackbone(
        cfg.MODEL.TIMM.NAME,
        output_stride=cfg.MODEL.TIMM.OUTPUT_STRIDE,
        norm=cfg.MODEL.TIMM.NORM,
        align_corners=cfg.MODEL.ALIGN_CORNERS,
        frozen=cfg.MODEL.TIMM.FROZEN,
        drop_path=cfg.MODEL.TIMM.DROP_PATH,
        in_channels=input_shape.channels,
    )
    head = cfg.MODEL.SEM_SEG_HEAD
    coarse = head.COARSE_IN_FEATURES if head.NAME == "ContextSemSegHead" else []
    read = {*head.IN_FEATURES, *coarse}
    backbone.freeze_unread_branches(read)
    backbone.truncate(read)
    return backbone
