"""Backbones of timm behind Detectron2's interface: HRNet, and a dilated ResNet-18."""

import timm
from detectron2.config import CfgNode
from detectron2.layers import FrozenBatchNorm2d, ShapeSpec
from detectron2.modeling import BACKBONE_REGISTRY, Backbone
from torch import Tensor, nn


class TimmBackbone(Backbone):
    """
    The feature maps of a timm network. Random weights: files come by MODEL.WEIGHTS, and timm
    never asks the network.

    An HRNet adds its branches by bilinear upsampling, as both published segmentation codes do;
    timm's own, an ImageNet classifier, takes the nearest neighbours. No parameter is concerned.

    Args:
        name: of a timm model with ``features_only``, such as hrnet_w48 or resnet18.
        output_stride: 32, or 16 or 8 for networks that timm can dilate (ResNets).
        norm: "BN", "SyncBN" or "FrozenBN".

    Raises:
        ValueError: unknown name or norm, or a stride that the network does not have.
    """

    def __init__(self, name: str, *, output_stride: int = 32, norm: str = "SyncBN"):
        super().__init__()
        options = {}
        if name.startswith("hrnet"):
            options["feature_location"] = ""  # the plain stages, not the classification head's
        if output_stride != 32:
            options["output_stride"] = output_stride
        try:
            body = timm.create_model(name, pretrained=False, features_only=True, **options)
        except (RuntimeError, TypeError, NotImplementedError, AssertionError) as e:
            raise ValueError(
                f"MODEL.TIMM.NAME {name} with OUTPUT_STRIDE {output_stride}: timm says {e}. "
                "Use hrnet_w18, hrnet_w32, hrnet_w48 (stride 32) or resnet18 (32, 16, 8)."
            ) from e
        if norm == "SyncBN":
            body = nn.SyncBatchNorm.convert_sync_batchnorm(body)
        elif norm == "FrozenBN":
            body = FrozenBatchNorm2d.convert_frozen_batchnorm(body)
        elif norm != "BN":
            raise ValueError(f"MODEL.TIMM.NORM is {norm}; it is BN, SyncBN or FrozenBN")
        for module in body.modules():
            if isinstance(module, nn.Upsample):
                module.mode, module.align_corners = "bilinear", False
        self.body = body
        self._shapes = {
            feature["module"]: ShapeSpec(channels=feature["num_chs"], stride=feature["reduction"])
            for feature in body.feature_info.get_dicts()
        }
        # HRNet adds maps of different strides, which fit for multiples of the coarsest alone.
        self._size_divisibility = max(s.stride for s in self._shapes.values())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """
        Args:
            x: [N, 3, H, W], H and W multiples of ``size_divisibility``

        Returns:
            feature maps by timm's name of the module, [N, C, H / stride, W / stride]
        """
        return dict(zip(self._shapes, self.body(x)))

    def output_shape(self) -> dict[str, ShapeSpec]:
        return dict(self._shapes)

    @property
    def size_divisibility(self) -> int:
        return self._size_divisibility


@BACKBONE_REGISTRY.register()
def build_timm_backbone(cfg: CfgNode, input_shape: ShapeSpec) -> TimmBackbone:
    """The network of MODEL.TIMM."""
    timm_cfg = cfg.MODEL.TIMM
    return TimmBackbone(timm_cfg.NAME, output_stride=timm_cfg.OUTPUT_STRIDE, norm=timm_cfg.NORM)
