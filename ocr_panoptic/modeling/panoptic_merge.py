"""Panoptic-FPN's merge of instances and semantic labels, without a wait for each instance."""

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
    """
    The least that a merge asks of a segment.

    Attributes:
        overlap: largest share of an instance that may be taken.
        scores: least score of an instance, of each thing class.
        stuff_areas: least number of free pixels, of each semantic class; that of things, 0, is not
            read.
    """

    overlap: float
    scores: tuple[float, ...]
    stuff_areas: tuple[float, ...]


def rules_of_config(cfg: CfgNode) -> MergeRules:
    """
    Return the rules of MODEL.PANOPTIC_FPN.COMBINE.

    Args:
        cfg: whose numbers of classes are complete.
    """
    combine = cfg.MODEL.PANOPTIC_FPN.COMBINE

    def by_class(name: str, value: float, classes: int, what: str) -> tuple[float, ...]:
        values = combine[name] or [value] * classes
        if len(values) != classes:
            raise UserError(
                f"MODEL.PANOPTIC_FPN.COMBINE.{name} has {len(values)} values; it has one for each "
                f"of the {classes} {what}, or is []"
            )
        return tuple(map(float, values))

    things, labels = cfg.MODEL.ROI_HEADS.NUM_CLASSES, cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES
    return MergeRules(
        combine.OVERLAP_THRESH,
        by_class("CLASS_CONFIDENCE", combine.INSTANCES_CONFIDENCE_THRESH, things, "thing classes"),
        by_class("CLASS_STUFF_AREA", combine.STUFF_AREA_LIMIT, labels, "semantic classes"),
    )


def rules_of_network(network: PanopticFPN) -> MergeRules:
    """Return the rules that :func:`.build_model` has read; of a network that Detectron2 alone has
    built, its own."""
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
    The result of Detectron2's ``combine_semantic_and_instance_outputs``. Instances take the pixels
    that are free, the highest score first, but for those too much of which is taken; then stuff
    classes take the rest. Whether an instance is taken depends on those before it, so they are
    looked at in turn; but all of them come from the device at once, and areas are counted by NumPy.

    Args:
        instances: ``scores`` [n], ``pred_classes`` [n] and ``pred_masks`` [n, H, W].
        labels: semantic labels [H, W], 0 for things.

    Returns:
        (int32 [H, W], the segment of each pixel, 0 for none; the segments, with "id", "isthing",
        "category_id", and "score" and "instance_id" of things, "area" of stuff)
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
