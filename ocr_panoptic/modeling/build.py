"""The model of a config: Detectron2's, with parts exchanged that GPUs do not go well with."""

import torch
from detectron2.config import CfgNode
from detectron2.modeling import META_ARCH_REGISTRY, build_backbone
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from detectron2.modeling.poolers import ROIPooler
from detectron2.modeling.roi_heads.mask_head import MaskRCNNConvUpsampleHead
from detectron2.structures import Boxes
from torch import Tensor, nn

from ocr_panoptic.layers import SyncBatchNorm

from .features import check_panoptic_names, check_stage_names
from .panoptic_augmentation import PanopticAugmentation
from .panoptic_merge import rules_of_config


def build_model(cfg: CfgNode) -> nn.Module:
    """
    Detectron2's ``build_model``, with its parameters and, in float32, its results:

    - PyTorch's synchronised batch norms are :class:`.SyncBatchNorm`.
    - In mixed precision boxes are pooled and masks pasted at float32 coordinates, see
      :class:`ExactROIPooler` and :class:`ExactMaskHead`.
    - A ``PanopticFPN`` has ``merge_rules``, see :class:`.MergeRules`, and, with TEST.AUG.ENABLED,
      an ``augmentation`` at test time, see :class:`.PanopticAugmentation`.

    Raises:
        ValueError: as :func:`build_network`.
    """
    model = build_network(cfg).to(cfg.MODEL.DEVICE)
    for module in model.modules():
        if type(module) is nn.SyncBatchNorm:
            SyncBatchNorm.convert(module)
        elif type(module) is ROIPooler:
            module.__class__ = ExactROIPooler
        elif type(module) is MaskRCNNConvUpsampleHead:
            module.__class__ = ExactMaskHead
    if isinstance(model, PanopticFPN):
        model.merge_rules = rules_of_config(cfg)
        model.augmentation = PanopticAugmentation(cfg) if cfg.TEST.AUG.ENABLED else None
    return model


def build_network(cfg: CfgNode) -> nn.Module:
    """
    Return Detectron2's architecture of a config, on PyTorch's default device.

    Raises:
        ValueError: a key lists a feature that there is not; or what the parts do not take.
    """
    check_stage_names(cfg)
    is_panoptic = cfg.MODEL.META_ARCHITECTURE == "PanopticFPN"
    try:
        network = META_ARCH_REGISTRY.get(cfg.MODEL.META_ARCHITECTURE)(cfg)
    except (KeyError, ValueError):  # of a head that misses a feature
        if is_panoptic:
            with torch.device("meta"):
                check_panoptic_names(cfg, build_backbone(cfg))
        raise
    if is_panoptic:
        check_panoptic_names(cfg, network.backbone)
    return network


class ExactROIPooler(ROIPooler):
    """Detectron2's pooler for features of half precision, to which it would round the boxes: in
    bfloat16 by up to 4 pixels of an image of 1333. torchvision pools in float32 in any case."""

    def forward(self, x: list[Tensor], box_lists: list[Boxes]) -> Tensor:
        """Maps [N, C, h, w] and N lists of boxes to [R, C, s, s], of the maps' type."""
        return super().forward([_wide(map_) for map_ in x], box_lists).to(x[0].dtype)


class ExactMaskHead(MaskRCNNConvUpsampleHead):
    """Detectron2's mask head, whose masks are float32: pixels are looked up in them at coordinates
    of their type, in bfloat16 up to 1/1024 of a box's side beside the place."""

    def layers(self, x: Tensor) -> Tensor:
        """[R, C, s, s] to logits [R, K, 2s, 2s]."""
        return _wide(super().layers(x))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
