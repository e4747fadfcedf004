"""Panoptic-FPN's merge of instances and semantic labels, without a GPU sync for each instance."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from detectron2.config import CfgNode
from detectron2.modeling.meta_arch.panoptic_fpn import PanopticFPN
from detectron2.structures import Instances
from torch import Tensor

from ocr_panoptic.errors import UserError


@dataclass(frozen=True)
class MergeRules:
    """The thresholds of a panoptic merge."""

    overlap: float  # an instance is dropped if higher scores have taken a larger share
    scores: tuple[float, ...]  # lowest score of an instance, for each thing class
    # Smallest area of a stuff segment in pixels, for each semantic class; not used for class 0.
    stuff_areas: tuple[float, ...]


def rules_of_config(cfg: CfgNode) -> MergeRules:
    """Return the merge rules of a config, in which the numbers of classes must be set."""
    combine = cfg.MODEL.PANOPTIC_FPN.COMBINE

    def by_class(name: str, value: float, classes: int, what: str) -> tuple[float, ...]:
        values = combine[name] or [value] * classes
        if len(values) != classes:
            raise UserError(
                f"MODEL.PANOPTIC_FPN.COMBINE.{name} has length {len(values)}; expected a value "
                f"for each of the {classes} {what}, or []"
            )
        return tuple(map(float, values))

    things, labels = cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES
    return MergeRules(
        combine.OVERLAP_THRESH,
        by_class("CLASS_CONFIDENCE", combine.INSTANCES_CONFIDENCE_THRESH, things, "thing classes"),
        by_class("CLASS_STUFF_AREA", combine.STUFF_AREA_LIMIT, labels, "semantic classes"),
    )


def rules_of_network(network: PanopticFPN) -> MergeRules:
    """Return the merge rules of a ``PanopticSegmentor`` or of Detectron2's own ``PanopticFPN``."""
    if rules := getattr(network, "merge_rules", None):
        return rules
    return MergeRules(
        network.combine_overlap_thresh,
        (network.combine_instances_score_thresh,) * network.roi_heads.num_classes,
        (network.combine_stuff_area_thresh,) * network.sem_seg_head.predictor.out_channels,
    )


def merge_panoptic(
    instances: Instances, labels: Tensor, rules: MergeRules
) -> tuple[Tensor, list[dict[str, Any]]]:
    """
    Merge instances and semantic labels into panoptic segments.

    As in Detectron2's ``combine_semantic_and_instance_outputs``, instances take free pixels, the
    highest score first. An instance is dropped if too many of its pixels are already taken. Then
    stuff classes take the remaining pixels.

    Args:
        instances: instances with ``scores`` [n], ``pred_classes`` [n], ``pred_masks`` [n, H, W].
        labels: semantic labels [H, W]; label 0 stands for things.
        rules: thresholds of the merge.

    Returns:
        (ids, segments): the segment id of each pixel, int32 [H, W], 0 for no segment; and a dict
        for each segment with "id", "isthing" and "category_id". A thing also has "score" and
        "instance_id"; a stuff segment has "area".
    """
    order = torch.argsort(-instances.scores)
    scores, classes = instances.scores[order].tolist(), instances.pred_classes[order].tolist()
    used = [i for i, c in enumerate(classes) if scores[i] >= rules.scores[c]]
    order = order[used]
    masks = instances.pred_masks[order].to(torch.bool).cpu().numpy()
    ids = np.zeros(labels.shape, dtype=np.int32)
    taken = np.zeros(labels.shape, dtype=bool)
    segments: list[dict[str, Any]] = []
    for mask, i, index in zip(masks, used, order.tolist()):
        filled = np.flatnonzero(mask.any(axis=1))
        rows = slice(filled[0], filled[-1] + 1) if len(filled) else slice(0, 0)
        mask, there = mask[rows], taken[rows]
        free = mask > there
        area, free_area = np.count_nonzero(mask), np.count_nonzero(free)
        if area == 0 or (area - free_area) / area > rules.overlap:
            continue
        there |= mask
        segment = {"id": len(segments) + 1, "isthing": True, "score": scores[i]}
        segments.append({**segment, "category_id": classes[i], "instance_id": index})
        np.copyto(ids[rows], segment["id"], where=free)
    semantic = labels.cpu().numpy()
    areas = np.bincount(semantic[~taken])
    segment_of = np.zeros(semantic.max(initial=0) + 1, dtype=np.int32)
    for label in np.flatnonzero(np.bincount(semantic.ravel())).tolist():
        area = int(areas[label]) if label < len(areas) else 0
        if label == 0 or area < rules.stuff_areas[label]:
            continue
        segment = {"id": len(segments) + 1, "isthing": False, "category_id": label, "area": area}
        segments.append(segment)
        segment_of[label] = segment["id"]
    np.copyto(ids, segment_of[semantic], where=~taken)
    return torch.from_numpy(ids).to(labels.device), segments
