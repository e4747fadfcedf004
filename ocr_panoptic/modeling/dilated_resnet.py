"""Detectron2's dilated ResNet, with two options that published OCR weights need."""

import torch.nn.functional as F
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, ResNet
from detectron2.projects.deeplab.resnet import DeepLabStem, build_resnet_deeplab_backbone
from torch import Tensor

from ocr_panoptic.errors import UserError


class CeilModeStem(DeepLabStem):
    """
    Detectron2's ``DeepLabStem`` with max-pooling in ceil mode, as in openseg.pytorch.

    An input of 256 x 256 pixels gives a map of 65 x 65 instead of 64 x 64.
    """

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2, self.conv3):
            x = F.relu_(conv(x))
        return F.max_pool2d(x, kernel_size=3, stride=2, padding=1, ceil_mode=True)


@BACKBONE_REGISTRY.register()
def build_dilated_resnet_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> ResNet:
    """
    Build Detectron2's dilated ResNet with two more options in MODEL.RESNETS.

    CONTRACT_DILATION halves the dilation in the first block of each dilated stage. STEM_CEIL_MODE
    selects :class:`CeilModeStem`.
    """
    resnets = cfg.MODEL.RESNETS
    if resnets.DEPTH not in (50, 101, 152):
        raise UserError(
            f"MODEL.RESNETS.DEPTH is {resnets.DEPTH}; Detectron2's dilated ResNet supports 50, "
            '101 and 152. For 18 or 34, use timm: set MODEL.BACKBONE.NAME "build_timm_backbone", '
            "MODEL.TIMM.NAME resnet18, MODEL.TIMM.OUTPUT_STRIDE 8, MODEL.SEM_SEG_HEAD.IN_FEATURES "
            "\"['layer4']\" and MODEL.SEM_SEG_HEAD.COARSE_IN_FEATURES \"['layer3']\"."
        )
    if resnets.STEM_CEIL_MODE and resnets.STEM_TYPE != "deeplab":
        raise UserError("MODEL.RESNETS.STEM_CEIL_MODE True needs MODEL.RESNETS.STEM_TYPE deeplab")
    backbone = build_resnet_deeplab_backbone(cfg, input_shape)
    if resnets.CONTRACT_DILATION:
        for stage in backbone.stages:
            conv = stage[0].conv2
            if conv.dilation[0] > 1:
                conv.dilation = conv.padding = tuple(d // 2 for d in conv.dilation)
    if resnets.STEM_CEIL_MODE:
        backbone.stem = CeilModeStem(
            input_shape.channels, resnets.STEM_OUT_CHANNELS, norm=resnets.NORM
        )
        backbone.freeze(cfg.MODEL.BACKBONE.FREEZE_AT)
    return backbone
