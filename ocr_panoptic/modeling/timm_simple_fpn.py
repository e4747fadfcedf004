"""ViTDet's simple feature pyramid, which is Detectron2's, on a plain ViT of timm."""

from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY
from detectron2.modeling.backbone import SimpleFeaturePyramid
from detectron2.modeling.backbone.fpn import LastLevelMaxPool

from ocr_panoptic.errors import UserError

from .timm_backbone import TimmBackbone, timm_arguments

PATCH_SIZE = 16
SCALES = (4.0, 2.0, 1.0, 0.5)  # of strides 4, 8, 16 and 32


class TimmSimplePyramid(SimpleFeaturePyramid):
    """
    Detectron2's, for images of any size: it pads them to squares, or, as it misspells the key, not
    at all.
    """

    @property
    def size_divisibility(self) -> int:
        return self._size_divisibility

    @property
    def padding_constraints(self) -> dict[str, int]:
        return {"size_divisibility": self._size_divisibility, "square_size": self._square_pad}


@BACKBONE_REGISTRY.register()
def build_timm_simple_fpn_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> TimmSimplePyramid:
    """
    The plain ViT of MODEL.TIMM under :paper:`ViTDet`'s pyramid with MODEL.FPN.OUT_CHANNELS and
    MODEL.FPN.NORM ("LN" in the paper): p2 to p6. MODEL.FPN.IN_FEATURES names the one block whose
    map is read, the last one in the paper; those behind it are left out.

    Raises:
        ValueError: the network's features are not of stride 16, or it has not the one feature.
    """
    fpn = cfg.MODEL.FPN
    net = TimmBackbone(**timm_arguments(cfg, input_shape))
    shapes = net.output_shape()
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
    names = list(fpn.IN_FEATURES)
    if len(names) != 1 or names[0] not in shapes:
        raise UserError(
            f"MODEL.FPN.IN_FEATURES is {names}; build_timm_simple_fpn_backbone reads one feature, "
            f"such as the last one, ['{list(shapes)[-1]}']"
        )
    net.read(names)
    return TimmSimplePyramid(
        net,
        names[0],
        fpn.OUT_CHANNELS,
        SCALES,
        top_block=LastLevelMaxPool(),
        norm=fpn.NORM,
    )
