"""
Hand-written ONNX graphs of PyTorch operators that the exporter cannot translate for variable sizes.

Shape shorthand:

- NMS: B sets of R boxes, G groups of scores for each set, M kept boxes
- labels: H W size of an image, Ho Wo size of the label map, K classes, h w feature size
- pooling: N images, C channels, h w feature size, s side of the pooled map
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from onnxscript import FLOAT, INT32, INT64, script
from onnxscript import opset18 as op
from torch import Tensor

NO_LIMIT = 2**62


@torch.library.custom_op("ocr_panoptic::nms", mutates_args=())
def nms(
    boxes: Tensor, scores: Tensor, iou_threshold: float, score_threshold: float, limit: int
) -> Tensor:
    """
    Return the indices of the boxes that non-maximum suppression keeps.

    Each set of boxes is suppressed separately for each group of scores (e.g. for each class).

    Args:
        boxes: boxes x0, y0, x1, y1, [B, R, 4].
        scores: score of each box in each group, [B, G, R].
        iou_threshold: a box is dropped if its IoU with a kept box is above this threshold.
        score_threshold: only boxes with scores above this threshold take part.
        limit: maximum number of boxes to keep, by highest score; -1 for no limit.

    Returns:
        indices (set, group, box) of the kept boxes in descending order of scores, int64 [M, 3]
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
    Return the most probable class of each pixel, and the class's probability.

    The logits are resized to the padded image, cropped to the image, and resized to Ho x Wo, as in
    Detectron2's ``sem_seg_postprocess``.

    Args:
        logits: logits of the padded image, float32 [1, K, h, w].
        padded: any tensor [..., padded H, padded W]; only its size is used.
        image: any tensor [H, W, 3]; only its size is used.
        size: Ho and Wo, int64 [2].
        align_corners: whether resizing aligns the centres of the corner pixels, not their corners.

    Returns:
        labels, int32 [Ho, Wo] (the first class if scores are equal), and probabilities, float32
        [Ho, Wo]
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


def nms_graph(boxes, scores, iou_threshold: float, score_threshold: float, limit: int):
    """Build the ONNX graph of :func:`nms`."""
    selected = op.NonMaxSuppression(boxes, scores, NO_LIMIT, iou_threshold, score_threshold)
    values = op.GatherND(scores, selected)
    count = op.Shape(values)
    if limit >= 0:
        count = op.Min(count, op.Constant(value_ints=[limit]))
    _, order = op.TopK(values, count)
    return op.Gather(selected, order)


def confident_labels_graph(logits, padded, image, size, align_corners: bool):
    """Build the ONNX graph of :func:`confident_labels`."""
    mode = "align_corners" if align_corners else "half_pixel"
    padded_size, image_size = op.Shape(padded, start=-2), op.Shape(image, start=0, end=2)
    return class_by_class(logits, padded_size, image_size, size, mode=mode)


@script(default_opset=op)
def class_by_class(
    logits: FLOAT[...], padded_size: INT64[2], image_size: INT64[2], size: INT64[2], mode: str
) -> tuple[INT32[...], FLOAT[...]]:
    """Return the result of :func:`confident_labels`, computed one class at a time."""
    # All classes at full resolution (1.2 GB for 150 classes at 1024 x 2048) would need more memory
    # than the network, so each class is resized separately, with a running softmax.
    # This function is inlined into the graph, so its names must differ from the graph's outputs.
    one_map = op.Constant(value_ints=[1, 1])
    sides = op.Constant(value_ints=[2, 3])
    padded_shape = op.Concat(one_map, padded_size, axis=0)
    shape = op.Concat(one_map, size, axis=0)
    highest = op.Expand(op.Constant(value_float=-1e30), size)
    total = op.Expand(op.Constant(value_float=0.0), size)  # sum of exp(score - highest)
    chosen = op.Expand(op.Cast(op.Constant(value_int=0), to=INT32.dtype), size)
    for k in range(op.Squeeze(op.Shape(logits, start=1, end=2), [0])):
        of_class = op.Unsqueeze(op.Gather(logits, k, axis=1), op.Constant(value_ints=[0]))
        of_class = op.Resize(
            of_class, None, None, padded_shape, mode="linear", coordinate_transformation_mode=mode
        )
        of_class = op.Slice(of_class, op.Constant(value_ints=[0, 0]), image_size, sides)
        of_class = op.Resize(
            of_class, None, None, shape, mode="linear", coordinate_transformation_mode=mode
        )
        of_class = op.Squeeze(of_class, op.Constant(value_ints=[0, 1]))
        # A running softmax needs two exponentials, but the larger score's is exp(0) = 1.
        ratio = op.Exp(op.Neg(op.Abs(op.Sub(of_class, highest))))
        higher = op.Greater(of_class, highest)
        one = op.Constant(value_float=1.0)
        total = op.Where(higher, op.Add(op.Mul(total, ratio), one), op.Add(total, ratio))
        chosen = op.Where(higher, op.Cast(k, to=INT32.dtype), chosen)
        highest = op.Max(highest, of_class)
    return chosen, op.Reciprocal(total)


def adaptive_avg_pool2d(x, output_size):
    """Build the ONNX graph of adaptive average pooling from [N, C, h, w] to [N, C, s, s]."""
    rows, columns = output_size
    if rows == columns == 1:
        return op.GlobalAveragePool(x)
    height, width = op.Shape(x, start=2, end=3), op.Shape(x, start=3, end=4)
    pooled = op.MatMul(x, op.Transpose(_shares(width, columns), perm=[1, 0]))
    return op.MatMul(_shares(height, rows), pooled)


def _shares(side, cells: int):
    """
    Return weights [cells, side] that average the pixels of each pooled cell along one axis.

    Cell i covers the pixels from floor(i side / cells) to ceil((i + 1) side / cells) - 1.
    """
    cell = op.Constant(value_ints=list(range(cells)))
    starts = op.Div(op.Mul(cell, side), cells)
    ends = op.Div(op.Add(op.Mul(op.Add(cell, 1), side), cells - 1), cells)
    starts, ends = op.Unsqueeze(starts, [1]), op.Unsqueeze(ends, [1])
    pixels = op.Unsqueeze(op.Range(0, op.Squeeze(side, [0]), 1), [0])
    inside = op.And(op.GreaterOrEqual(pixels, starts), op.Less(pixels, ends))
    count = op.Cast(op.Sub(ends, starts), to=FLOAT.dtype)
    return op.Div(op.Cast(inside, to=FLOAT.dtype), count)


TRANSLATIONS: dict[Any, Any] = {
    torch.ops.ocr_panoptic.nms.default: nms_graph,
    torch.ops.ocr_panoptic.confident_labels.default: confident_labels_graph,
    torch.ops.aten.adaptive_avg_pool2d.default: adaptive_avg_pool2d,
    torch.ops.aten._adaptive_avg_pool2d.default: adaptive_avg_pool2d,
}
"""PyTorch operator -> ONNX graph, for ``torch.onnx.export``."""
