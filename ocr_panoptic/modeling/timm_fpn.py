"""Detectron2's FPN on a network of timm."""

import torch
from detectron2.config import CfgNode
from detectron2.layers import ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY
from detectron2.modeling.backbone import FPN
from detectron2.modeling.backbone.fpn import LastLevelMaxPool
from torch import Tensor

from .timm_backbone import TimmBackbone

# Detectron2's names of features, by their stride.
STAGES = {4: "res2", 8: "res3", 16: "res4", 32: "res5"}
_ADVICE = (
    "Use a network with four stages, such as resnet50, tf_efficientnet_lite0, convnext_tiny or "
    "swin_tiny_patch4_window7_224, with MODEL.TIMM.OUTPUT_STRIDE 32."
)


class TimmPyramid(TimmBackbone):
    """
    The last feature map of a timm network at each of the strides 4, 8, 16 and 32, under the names
    that Detectron2's ResNet has for them: res2 to res5.

    Args:
        name, kwargs: see :class:`.TimmBackbone`.

    Raises:
        ValueError: the network lacks one of these strides, or its maps are not as large as its
            strides say (images of a fixed size, convolutions without padding).
    """

    def __init__(self, name: str, *, in_channels: int = 3, **kwargs):
        super().__init__(name, in_channels=in_channels, **kwargs)
        shapes = super().output_shape()
        self._by_stride = {shape.stride: feature for feature, shape in shapes.items()}
        if not STAGES.keys() <= self._by_stride.keys():
            found = ", ".join(map(str, sorted({shape.stride for shape in shapes.values()})))
            raise ValueError(
                f"MODEL.TIMM.NAME {name} has features of stride {found}, and an FPN needs those of "
                f"{', '.join(map(str, STAGES))}. {_ADVICE}"
            )
        self._check_sizes(name, in_channels)

    @torch.no_grad()
    def _check_sizes(self, name: str, in_channels: int, size: tuple[int, int] = (96, 160)) -> None:
        """That the maps are as large as they are said to be, with a black image."""
        training = self.training
        try:
            maps = self.eval()(torch.zeros(1, in_channels, *size))
        except (RuntimeError, AssertionError) as e:
            raise ValueError(
                f"MODEL.TIMM.NAME {name} does not take images of {size[0]}x{size[1]} pixels, and "
                f"an FPN needs a network for any size: timm says {e}. {_ADVICE}"
            ) from e
        finally:
            self.train(training)
        for key, shape in self.output_shape().items():
            expected = (shape.channels, *(side // shape.stride for side in size))
            found = tuple(maps[key].shape[1:])
            if found != expected:
                raise ValueError(
                    f"MODEL.TIMM.NAME {name} has {found} as its feature of stride {shape.stride} "
                    f"for an image of {size[0]}x{size[1]} pixels, and an FPN needs {expected}. "
                    f"{_ADVICE}"
                )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """
        Args:
            x: [N, in_channels, H, W], H and W multiples of 32

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
        raise ValueError(
            f"MODEL.FPN.IN_FEATURES is {fpn.IN_FEATURES}; build_timm_fpn_backbone has "
            f"{list(STAGES.values())}, the features of stride {', '.join(map(str, STAGES))}"
        )
    bottom_up = TimmPyramid(
        cfg.MODEL.TIMM.NAME,
        output_stride=cfg.MODEL.TIMM.OUTPUT_STRIDE,
        norm=cfg.MODEL.TIMM.NORM,
        frozen=cfg.MODEL.TIMM.FROZEN,
        drop_path=cfg.MODEL.TIMM.DROP_PATH,
        in_channels=input_shape.channels,
    )
    return FPN(
        bottom_up,
        fpn.IN_FEATURES,
        fpn.OUT_CHANNELS,
        norm=fpn.NORM,
        top_block=LastLevelMaxPool(),
        fuse_type=fpn.FUSE_TYPE,
    )
