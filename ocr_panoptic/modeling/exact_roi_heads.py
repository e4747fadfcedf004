"""Detectron2's ROI heads with exact coordinates in mixed precision, and all threads of a CPU."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from detectron2.config import CfgNode
from detectron2.layers import ROIAlign, ShapeSpec
from detectron2.modeling import ROI_HEADS_REGISTRY
from detectron2.modeling.poolers import ROIPooler
from detectron2.modeling.roi_heads import ROI_MASK_HEAD_REGISTRY, StandardROIHeads
from detectron2.modeling.roi_heads.mask_head import MaskRCNNConvUpsampleHead
from detectron2.structures import Instances
from torch import Tensor
from torchvision.ops import roi_align

from .ignored_pixels import without_ignored


@ROI_HEADS_REGISTRY.register()
class ExactROIHeads(StandardROIHeads):
    """
    Detectron2's standard ROI heads with an :class:`ExactROIPooler` for boxes and masks.

    In training, proposals on the ignored pixels of a :class:`.PartlyLabelled` image are left out.
    """

    @classmethod
    def from_config(cls, cfg: CfgNode, input_shape: dict[str, ShapeSpec]) -> dict:
        heads = super().from_config(cfg, input_shape)
        scales = [1.0 / input_shape[name].stride for name in cfg.MODEL.ROI_HEADS.IN_FEATURES]
        for part in ("box", "mask"):
            node = cfg.MODEL[f"ROI_{part.upper()}_HEAD"]
            if heads.get(f"{part}_pooler"):
                heads[f"{part}_pooler"] = ExactROIPooler(
                    node.POOLER_RESOLUTION, scales, node.POOLER_SAMPLING_RATIO, node.POOLER_TYPE
                )
        return heads

    def label_and_sample_proposals(
        self, proposals: list[Instances], targets: list[Instances]
    ) -> list[Instances]:
        """Return each image's sampled proposals, with the fields of their targets."""
        return super().label_and_sample_proposals(without_ignored(proposals, targets), targets)


class ExactROIPooler(ROIPooler):
    """Detectron2's ROI pooler with an :class:`ExactROIAlign` for each level of the pyramid."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for index, level in enumerate(self.level_poolers):
            if type(level) is ROIAlign:
                self.level_poolers[index] = ExactROIAlign(
                    level.output_size, level.spatial_scale, level.sampling_ratio, level.aligned
                )


class ExactROIAlign(ROIAlign):
    """
    Detectron2's ROIAlign with float32 boxes, which uses all threads of a CPU at inference.

    Detectron2 itself uses one thread on a CPU, and rounds boxes to the dtype of the features: in
    bfloat16, by up to 4 pixels in an image 1333 pixels wide.
    """

    def forward(self, input: Tensor, rois: Tensor) -> Tensor:
        """
        Pool regions of the features.

        Args:
            input: features [N, C, h, w].
            rois: regions [R, 5]: index of the image, and x0, y0, x1, y1 in pixels of the image.

        Returns:
            [R, C, *output_size] in the dtype of the features
        """
        features = _to_float32(input)
        if not torch.jit.is_scripting():  # TorchScript has no thread pool
            threads = torch.get_num_threads()
            if not (input.is_cuda or torch.is_grad_enabled()) and min(threads, len(rois)) > 1:
                return self._in_threads(features, rois, threads).to(input.dtype)
        return roi_align(
            features,
            rois.to(features.dtype),
            self.output_size,
            self.spatial_scale,
            self.sampling_ratio,
            self.aligned,
        ).to(input.dtype)

    def _in_threads(self, features: Tensor, rois: Tensor, threads: int) -> Tensor:
        align = partial(super().forward, features)
        with ThreadPoolExecutor(threads) as executor:
            return torch.cat(list(executor.map(align, rois.chunk(threads))))


@ROI_MASK_HEAD_REGISTRY.register()
class ExactMaskHead(MaskRCNNConvUpsampleHead):
    """
    Detectron2's mask head, which predicts float32 masks even in mixed precision.

    Detectron2 pastes bfloat16 masks with a position error of up to 1/1024 of the box's side.
    """

    def layers(self, x: Tensor) -> Tensor:
        """Return mask logits, float32 or better, of pooled features [R, C, h, w]."""
        for layer in self:  # TorchScript cannot call the method of the base class
            x = layer(x)
        return _to_float32(x)


def _to_float32(x: Tensor) -> Tensor:
    """Convert a half-precision tensor to float32, and return any other tensor unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
