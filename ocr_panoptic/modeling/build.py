"""Builds the network of a config."""

from concurrent.futures import ThreadPoolExecutor

import torch
from detectron2.config import CfgNode, configurable
from detectron2.layers import ShapeSpec
from detectron2.modeling import META_ARCH_REGISTRY, ROI_HEADS_REGISTRY
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from detectron2.modeling.poolers import ROIPooler
from detectron2.modeling.roi_heads import ROI_MASK_HEAD_REGISTRY, StandardROIHeads
from detectron2.modeling.roi_heads.mask_head import MaskRCNNConvUpsampleHead
from detectron2.structures import Boxes
from torch import Tensor, nn

from ocr_panoptic.errors import UserError
from ocr_panoptic.layers.sync_norms import fit_sync_norms

from .panoptic_merge import MergeRules, rules_of_config
from .refined_head import check_features


def build_model(cfg: CfgNode) -> nn.Module:
    """Build the network of a config on MODEL.DEVICE, with batch norms for its processes."""
    return fit_sync_norms(build_network(cfg), cfg.MODEL.DEVICE).to(cfg.MODEL.DEVICE)


def build_network(cfg: CfgNode) -> nn.Module:
    """
    Build the network of a config on PyTorch's default device.

    If MODEL.META_ARCHITECTURE is ``PanopticFPN``, the network is a :class:`PanopticSegmentor`.
    """
    name = cfg.MODEL.META_ARCHITECTURE
    if name != PanopticFPN.__name__:
        return META_ARCH_REGISTRY.get(name)(cfg)
    try:
        return PanopticSegmentor(cfg)
    except KeyError as error:  # Detectron2's error does not name the config key
        for section in ("FPN", "RPN", "ROI_HEADS"):
            if error.args[0] in (names := cfg.MODEL[section].IN_FEATURES):
                raise UserError(
                    f"MODEL.{section}.IN_FEATURES is {names}, and the backbone has no {error}"
                ) from error
        raise


class PanopticSegmentor(PanopticFPN):
    """
    Detectron2's ``PanopticFPN`` with merge thresholds for each class and test-time augmentation.

    Parameters and float32 results are the same as in ``PanopticFPN``. In mixed precision, the
    coordinates of boxes and of pasted masks stay float32.

    Args:
        merge_rules: thresholds for merging instances and semantic labels.
        augmentation: config that sets TEST.AUG; None for no test-time augmentation.
    """

    @configurable
    def __init__(self, *, merge_rules: MergeRules, augmentation: CfgNode | None = None, **kwargs):
        super().__init__(**kwargs)
        self.merge_rules, self.augmentation = merge_rules, augmentation

    @classmethod
    def from_config(cls, cfg: CfgNode) -> dict:
        exact = cfg.clone()
        exact.defrost()
        if exact.MODEL.ROI_HEADS.NAME == "StandardROIHeads":
            exact.MODEL.ROI_HEADS.NAME = "ExactROIHeads"
        if exact.MODEL.ROI_MASK_HEAD.NAME == "MaskRCNNConvUpsampleHead":
            exact.MODEL.ROI_MASK_HEAD.NAME = "ExactMaskHead"
        found = super().from_config(exact)
        # Detectron2's semantic head leaves out unknown names.
        names = cfg.MODEL.SEM_SEG_HEAD.IN_FEATURES
        check_features("MODEL.SEM_SEG_HEAD.IN_FEATURES", names, found["backbone"].output_shape())
        return {
            **found,
            "merge_rules": rules_of_config(cfg),
            "augmentation": cfg.clone() if cfg.TEST.AUG.ENABLED else None,
        }


@ROI_HEADS_REGISTRY.register()
class ExactROIHeads(StandardROIHeads):
    """Detectron2's standard ROI heads with an :class:`ExactROIPooler` for boxes and masks."""

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


class ExactROIPooler(ROIPooler):
    """
    Detectron2's ROI pooler with float32 boxes; on a CPU, inference on one image uses all threads.

    Detectron2 itself uses one thread on a CPU, and rounds boxes to the dtype of the features: in
    bfloat16, by up to 4 pixels in an image 1333 pixels wide.
    """

    def forward(self, x: list[Tensor], box_lists: list[Boxes]) -> Tensor:
        maps, pool = [_to_float32(map_) for map_ in x], super().forward
        threads = torch.get_num_threads()
        undivided = x[0].is_cuda or torch.is_grad_enabled() or len(box_lists) > 1
        if undivided or min(threads, len(box_lists[0])) < 2:
            return pool(maps, box_lists).to(x[0].dtype)
        with ThreadPoolExecutor(threads) as executor:
            parts = [Boxes(part) for part in box_lists[0].tensor.chunk(threads)]
            pooled = executor.map(lambda part: pool(maps, [part]), parts)
            return torch.cat(list(pooled)).to(x[0].dtype)


@ROI_MASK_HEAD_REGISTRY.register()
class ExactMaskHead(MaskRCNNConvUpsampleHead):
    """
    Detectron2's mask head, which predicts float32 masks even in mixed precision.

    Detectron2 pastes bfloat16 masks with a position error of up to 1/1024 of the box's side.
    """

    def layers(self, x: Tensor) -> Tensor:
        return _to_float32(super().layers(x))


def _to_float32(x: Tensor) -> Tensor:
    """Convert a half-precision tensor to float32, and return any other tensor unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
