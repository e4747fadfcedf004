"""Panoptic-FPN's merge of instances and semantic labels, without a wait for each instance."""

from typing import Any

import numpy as np
import torch
from detectron2.structures import Instances
from torch import Tensor


def merge_panoptic(
    instances: Instances,
    labels: Tensor,
    overlap_threshold: float,
    stuff_area_limit: float,
    score_threshold: float,
) -> tuple[Tensor, list[dict[str, Any]]]:
    """
    The result of Detectron2's ``combine_semantic_and_instance_outputs``. Instances take the pixels
    that are free, the highest score first, but for those too much of which is taken; then stuff
    classes take the rest. Whether an instance is taken depends on those before it, so they are
    looked at in turn; but all of them come from the device at once, and areas are counted by NumPy.

    Args:
        instances: ``scores`` [n], ``pred_classes`` [n] and ``pred_masks`` [n, H, W].
        labels: semantic labels [H, W], 0 for things.
        overlap_threshold: largest share of an instance that may be taken.
        stuff_area_limit: least number of free pixels of a stuff class.
        score_threshold: least score of an instance.

    Returns:
        (int32 [H, W], the segment of each pixel, 0 for none; the segments, with "id", "isthing",
        "category_id", and "score" and "instance_id" of things, "area" of stuff)
    """
    order = torch.argsort(-instances.scores)
    scores = instances.scores[order].tolist()
    count = next((i for i, s in enumerate(scores) if s < score_threshold), len(scores))
    order = order[:count]
    masks = instances.pred_masks[order].to(torch.bool).cpu().numpy()
    classes = instances.pred_classes[order].tolist()
    ids = np.zeros(labels.shape, dtype=np.int32)
    taken = np.zeros(labels.shape, dtype=bool)
    segments: list[dict[str, Any]] = []
    for mask, score, category, index in zip(masks, scores, classes, order.tolist()):
        rows = _rows(mask)
        mask, there = mask[rows], taken[rows]
        free = mask > there
        area, free_area = np.count_nonzero(mask), np.count_nonzero(free)
        if area == 0 or (area - free_area) / area > overlap_threshold:
            continue
        there |= mask
        segment = {"id": len(segments) + 1, "isthing": True, "score": score}
        segments.append({**segment, "category_id": category, "instance_id": index})
        np.copyto(ids[rows], segment["id"], where=free)
    semantic = labels.cpu().numpy()
    areas = np.bincount(semantic[~taken])
    segment_of = np.zeros(semantic.max(initial=0) + 1, dtype=np.int32)
    for label in np.flatnonzero(np.bincount(semantic.ravel())).tolist():
        area = int(areas[label]) if label < len(areas) else 0
        if label == 0 or area < stuff_area_limit:
            continue
        segment = {"id": len(segments) + 1, "isthing": False, "category_id": label, "area": area}
        segments.append(segment)
        segment_of[label] = segment["id"]
    np.copyto(ids, segment_of[semantic], where=~taken)
    return torch.from_numpy(ids).to(labels.device), segments


def _rows(mask: np.ndarray) -> slice:
    """The rows of [H, W] from the first to the last that is not empty."""
    rows = np.flatnonzero(mask.any(axis=1))
    return slice(rows[0], rows[-1] + 1) if len(rows) else slice(0, 0)
