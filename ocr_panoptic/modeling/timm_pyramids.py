"""Detectron2's feature pyramids on timm networks: FPN on stages, ViTDet's on a plain ViT."""

from collections.abc import Collection

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY
from detectron2.modeling.backbone import FPN, SimpleFeaturePyramid
from detectron2.modeling.backbone.fpn import LastLevelMaxPool
from torch import Tensor

from ocr_panoptic.errors import UserError

from .timm_backbone import TimmBackbone, timm_arguments

# Detectron2's names of features by stride.
STAGES = {4: "res2", 8: "res3", 16: "res4", 32: "res5"}
_ADVICE = (
    "Use a network with four stages, such as resnet50, tf_efficientnet_lite0, convnext_tiny or "
    "swin_tiny_patch4_window7_224, with MODEL.TIMM.OUTPUT_STRIDE 32."
)
_ADVICE_PLAIN = (
    "Use MODEL.BACKBONE.NAME build_timm_simple_fpn_backbone, or a network with four stages."
)


class TimmPyramid(TimmBackbone):
    """
    The last feature map of a timm network at each of the strides 4, 8, 16 and 32, as res2 to res5.

    These are the names that Detectron2's ResNet uses.

    Args:
        name, kwargs: arguments of :class:`.TimmBackbone`.
    """

    def _choose(self, features: Collection[str]) -> list[str]:
        self._by_stride = {shape.stride: feature for feature, shape in self.known.items()}
        if not STAGES.keys() <= self._by_stride.keys():
            found = ", ".join(map(str, sorted(self._by_stride)))
            advice = _ADVICE_PLAIN if len(self._by_stride) == 1 else _ADVICE
            raise UserError(
                f"MODEL.TIMM.NAME {self.name} has features of stride {found}, and an FPN needs "
                f"features of stride {', '.join(map(str, STAGES))}. {advice}"
            )
        return [self._by_stride[stride] for stride in STAGES]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return res2 to res5 [N, C, H / stride, W / stride]; H and W are multiples of 32."""
        features = super().forward(x)
        return {STAGES[stride]: features[self._by_stride[stride]] for stride in STAGES}

    def output_shape(self) -> dict[str, ShapeSpec]:
        shapes = super().output_shape()
        return {STAGES[stride]: shapes[self._by_stride[stride]] for stride in STAGES}


@BACKBONE_REGISTRY.register()
def build_timm_fpn_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> FPN:
    """Build MODEL.FPN on MODEL.TIMM's network: p2 to p6, like ``build_resnet_fpn_backbone``."""
    fpn = cfg.MODEL.FPN
    if list(fpn.IN_FEATURES) != list(STAGES.values()):
        raise UserError(
            f"MODEL.FPN.IN_FEATURES is {fpn.IN_FEATURES}; build_timm_fpn_backbone has "
            f"{list(STAGES.values())}, the features of stride {', '.join(map(str, STAGES))}"
        )
    bottom_up = TimmPyramid(**timm_arguments(cfg, input_shape))
    return FPN(
        bottom_up,
        fpn.IN_FEATURES,
        fpn.OUT_CHANNELS,
        norm=fpn.NORM,
        top_block=LastLevelMaxPool(),
        fuse_type=fpn.FUSE_TYPE,
    )


PATCH_SIZE = 16
SCALES = (4.0, 2.0, 1.0, 0.5)  # to strides 4, 8, 16 and 32


class TimmSimplePyramid(SimpleFeaturePyramid):
    """Detectron2's pyramid with its misspelt padding constraint fixed, for images of any size."""

    @property
    def size_divisibility(self) -> int:
        return self._size_divisibility

    @property
    def padding_constraints(self) -> dict[str, int]:
        return {"size_divisibility": self._size_divisibility, "square_size": self._square_pad}


@BACKBONE_REGISTRY.register()
def build_timm_simple_fpn_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> TimmSimplePyramid:
    """
    Build :paper:`ViTDet`'s pyramid on the plain ViT of MODEL.TIMM: p2 to p6.

    It reads MODEL.FPN.OUT_CHANNELS and MODEL.FPN.NORM (default "LN", as in the paper).
    MODEL.FPN.IN_FEATURES names the one block whose map is read, in the paper the last block; later
    blocks are removed.
    """
    fpn = cfg.MODEL.FPN
    names = list(fpn.IN_FEATURES)
    net = TimmBackbone(features=names, **timm_arguments(cfg, input_shape))
    shapes = net.known
    strides = sorted({shape.stride for shape in shapes.values()})
    if strides != [PATCH_SIZE]:
        fix = (
            f"Set MODEL.TIMM.PATCH_SIZE {PATCH_SIZE}."
            if len(strides) == 1
            else "Use build_timm_fpn_backbone for it."
        )
        raise UserError(
            f"MODEL.TIMM.NAME {cfg.MODEL.TIMM.NAME} has features of stride "
            f"{', '.join(map(str, strides))}, and the simple feature pyramid needs "
            f"{PATCH_SIZE}. {fix}"
        )
    if len(names) != 1 or names[0] not in shapes:
        raise UserError(
            f"MODEL.FPN.IN_FEATURES is {names}; build_timm_simple_fpn_backbone reads one feature, "
            f"such as the last one, ['{list(shapes)[-1]}']"
        )
    return TimmSimplePyramid(
        net,
        names[0],
        fpn.OUT_CHANNELS,
        SCALES,
        top_block=LastLevelMaxPool(),
        norm=fpn.NORM or "LN",  # Detectron2's pyramid cannot do without a norm
    )
