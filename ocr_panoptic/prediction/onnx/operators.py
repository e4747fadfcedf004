"""
Operators of PyTorch that stand for a part of an ONNX graph which the exporter cannot find by
itself; :mod:`.translations` has that part.

Shape shorthand: B sets of boxes, G groups that are suppressed apart from each other, R boxes of a
set, M boxes that are left; H W size of an image, Ho Wo size of the labels wanted, K classes, h w
feature size.
"""

from functools import partial

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor


@torch.library.custom_op("ocr_panoptic::nms", mutates_args=())
def nms(
    boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float, limit: int
) -> Tensor:
    """
    Non-maximum suppression, within each set of boxes and each group.

    Args:
        boxes: x0, y0, x1, y1, [B, R, 4]
        scores: [B, G, R]
        iou_threshold: of two boxes whose overlap is larger the one of lower score goes.
        score_threshold: boxes with scores above it take part.
        limit: number of boxes that are kept, those of the highest scores; -1: all.

    Returns:
        int64 [M, 3], set, group and box, the highest score first
    """
    found = []
    for b, of_set in enumerate(scores):
        for g, of_group in enumerate(of_set):
            taking_part = (of_group > score_threshold).nonzero()[:, 0]
            kept = torchvision.ops.nms(boxes[b, taking_part], of_group[taking_part], iou_threshold)
            box = taking_part[kept]
            found.append(torch.stack([torch.full_like(box, b), torch.full_like(box, g), box], 1))
    selected = torch.cat(found)
    order = scores[selected.unbind(1)].argsort(descending=True, stable=True)
    return selected[order if limit < 0 else order[:limit]]


@nms.register_fake
def _(boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float, limit: int):
    return scores.new_empty((torch.library.get_ctx().new_dynamic_size(), 3), dtype=torch.int64)


@torch.library.custom_op("ocr_panoptic::confident_labels", mutates_args=())
def confident_labels(
    logits: Tensor, padded: Tensor, image: Tensor, size: Tensor, align_corners: bool
) -> tuple[Tensor, Tensor]:
    """
    The labels of an image and their probabilities, by the steps of Detectron2's
    ``sem_seg_postprocess``. In ONNX one class at a time is upsampled: what all of them need at full
    resolution, 1.2 GB for 150 classes at 1024 x 2048, is more than the network itself.

    Args:
        logits: float32 [1, K, h, w], which cover the padded image
        padded: of any type [..., padded H, padded W]; its size alone counts
        image: of any type [H, W, 3]; its size alone counts
        size: int64 [2], Ho and Wo
        align_corners: of the resizing, see :func:`ocr_panoptic.layers.resize`

    Returns:
        int32 [Ho, Wo], the first class of equal scores; float32 [Ho, Wo]
    """
    height, width = image.shape[:2]
    resize = partial(F.interpolate, mode="bilinear", align_corners=align_corners)
    scores = resize(logits, tuple(padded.shape[-2:]))[..., :height, :width]
    scores = resize(scores, tuple(size.tolist()))[0]
    confidences, labels = scores.softmax(dim=0).max(dim=0)
    return labels.to(torch.int32), confidences


@confident_labels.register_fake
def _(logits: Tensor, padded: Tensor, image: Tensor, size: Tensor, align_corners: bool):
    context = torch.library.get_ctx()
    sides = context.new_dynamic_size(), context.new_dynamic_size()
    return logits.new_empty(sides, dtype=torch.int32), logits.new_empty(sides)
