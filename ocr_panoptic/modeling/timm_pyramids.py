"""Detectron2's feature pyramids on timm networks: FPN, and ViTDet's pyramid on a plain ViT."""

from collections.abc import Collection

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY
from detectron2.modeling.backbone import FPN, SimpleFeaturePyramid
from detectron2.modeling.backbone.fpn import LastLevelMaxPool
from torch import Tensor

from ocr_panoptic.errors import UserError

from .timm_backbone import TimmBackbone, timm_arguments

# Stride -> name of the feature in Detectron2's ResNet.
STAGES = {4: "res2", 8: "res3", 16: "res4", 32: "res5"}


class TimmPyramid(TimmBackbone):
    """
    A timm network whose features are named res2 to res5, as in Detectron2's ResNet.

    These features are the network's last maps at strides 4, 8, 16 and 32. The constructor takes
    the arguments of :class:`.TimmBackbone`.
    """

    def _choose(self, features: Collection[str]) -> list[str]:
        self._by_stride = {shape.stride: feature for feature, shape in self.known.items()}
        if not STAGES.keys() <= self._by_stride.keys():
            raise UserError(
                f"MODEL.TIMM.NAME {self.name} has features of stride "
                f"{', '.join(map(str, sorted(self._by_stride)))}, but an FPN needs strides "
                f"{', '.join(map(str, STAGES))}. Use a network with four stages and "
                "MODEL.TIMM.OUTPUT_STRIDE 32 or, for a plain ViT, MODEL.BACKBONE.NAME "
                "build_timm_simple_fpn_backbone."
            )
        return [self._by_stride[stride] for stride in STAGES]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return res2 to res5, [N, C, H / stride, W / stride]; H and W must be multiples of 32."""
        features = super().forward(x)
        return {STAGES[stride]: features[self._by_stride[stride]] for stride in STAGES}

    def output_shape(self) -> dict[str, ShapeSpec]:
        shapes = super().output_shape()
        return {STAGES[stride]: shapes[self._by_stride[stride]] for stride in STAGES}


@BACKBONE_REGISTRY.register()
def build_timm_fpn_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> FPN:
    """
    Build an FPN (p2 to p6) on the timm network that MODEL.TIMM describes.

    The options in MODEL.FPN have the same meaning as for Detectron2's ResNet FPN.
    """
    fpn = cfg.MODEL.FPN
    if list(fpn.IN_FEATURES) != list(STAGES.values()):
        raise UserError(
            f"MODEL.FPN.IN_FEATURES is {fpn.IN_FEATURES}; with build_timm_fpn_backbone, expected "
            f"{list(STAGES.values())}"
        )
    return FPN(
        TimmPyramid(**timm_arguments(cfg, input_shape)),
        fpn.IN_FEATURES,
        fpn.OUT_CHANNELS,
        norm=fpn.NORM,
        top_block=LastLevelMaxPool(),
        fuse_type=fpn.FUSE_TYPE,
    )


PATCH_SIZE = 16
SCALES = (4.0, 2.0, 1.0, 0.5)  # from stride 16 to strides 4, 8, 16 and 32


class TimmSimplePyramid(SimpleFeaturePyramid):
    """Detectron2's ViTDet pyramid, with images padded to multiples of 32."""

    @property
    def size_divisibility(self) -> int:
        return self._size_divisibility

    @property
    def padding_constraints(self) -> dict[str, int]:
        # Detectron2 misspells the key "size_divisibility", so its own class does not pad images.
        return {"size_divisibility": self._size_divisibility, "square_size": self._square_pad}


@BACKBONE_REGISTRY.register()
def build_timm_simple_fpn_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> TimmSimplePyramid:
    """
    Build the pyramid of :paper:`ViTDet` (p2 to p6) on the plain ViT of MODEL.TIMM.

    The pyramid has MODEL.FPN.OUT_CHANNELS channels and the norm MODEL.FPN.NORM (by default "LN", as
    in the paper). It reads the map of a single block, which MODEL.FPN.IN_FEATURES names; the paper
    uses the last block. All blocks after the named block are removed.
    """
    fpn = cfg.MODEL.FPN
    names = list(fpn.IN_FEATURES)
    net = TimmBackbone(features=names, **timm_arguments(cfg, input_shape))
    strides = sorted({shape.stride for shape in net.known.values()})
    if strides != [PATCH_SIZE]:
        raise UserError(
            f"MODEL.TIMM.NAME {cfg.MODEL.TIMM.NAME} has features of stride "
            f"{', '.join(map(str, strides))}, but the simple feature pyramid needs stride "
            f"{PATCH_SIZE}. Set MODEL.TIMM.PATCH_SIZE {PATCH_SIZE} for a plain ViT, or "
            "MODEL.BACKBONE.NAME build_timm_fpn_backbone for a network with four stages."
        )
    if len(names) != 1 or names[0] not in net.known:
        raise UserError(
            f"MODEL.FPN.IN_FEATURES is {names}; build_timm_simple_fpn_backbone needs exactly one "
            f"of the network's features, such as the last: ['{list(net.known)[-1]}']"
        )
    return TimmSimplePyramid(
        net,
        names[0],
        fpn.OUT_CHANNELS,
        SCALES,
        top_block=LastLevelMaxPool(),
        norm=fpn.NORM or "LN",  # Detectron2's pyramid needs a norm
    )
