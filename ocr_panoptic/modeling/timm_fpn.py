"""Detectron2's FPN on a network of timm."""

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY
from detectron2.modeling.backbone import FPN
from detectron2.modeling.backbone.fpn import LastLevelMaxPool
from torch import Tensor

from ocr_panoptic.errors import UserError

from .timm_backbone import TimmBackbone, timm_arguments

# Detectron2's names of features, by their stride.
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
    The last feature map of a timm network at each of the strides 4, 8, 16 and 32, under the names
    that Detectron2's ResNet has for them: res2 to res5.

    Args:
        name, kwargs: see :class:`.TimmBackbone`.

    Raises:
        ValueError: the network lacks one of these strides.
    """

    def __init__(self, name: str, **kwargs):
        super().__init__(name, **kwargs)
        shapes = super().output_shape()
        self._by_stride = {shape.stride: feature for feature, shape in shapes.items()}
        if not STAGES.keys() <= self._by_stride.keys():
            found = ", ".join(map(str, sorted({shape.stride for shape in shapes.values()})))
            advice = _ADVICE_PLAIN if len(self._by_stride) == 1 else _ADVICE
            raise UserError(
                f"MODEL.TIMM.NAME {name} has features of stride {found}, and an FPN needs those of "
                f"{', '.join(map(str, STAGES))}. {advice}"
            )
        self.read(self._by_stride[stride] for stride in STAGES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """
        Args:
            x: [N, C, H, W], H and W multiples of 32

        Returns:
            res2 to res5, [N, C, H / stride, W / stride] each
        """
        features = super().forward(x)
        return {STAGES[stride]: features[self._by_stride[stride]] for stride in STAGES}

    def output_shape(self) -> dict[str, ShapeSpec]:
        shapes = super().output_shape()
        return {STAGES[stride]: shapes[self._by_stride[stride]] for stride in STAGES}


@BACKBONE_REGISTRY.register()
def build_timm_fpn_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> FPN:
    """
    The network of MODEL.TIMM under the FPN of MODEL.FPN, as ``build_resnet_fpn_backbone`` has
    Detectron2's ResNet: p2 to p6.

    Raises:
        ValueError: see :class:`TimmPyramid`, or MODEL.FPN.IN_FEATURES are others than its four.
    """
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
