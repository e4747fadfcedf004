"""
What a graph needs and the exporter of PyTorch does not have: non-maximum suppression whose result
is sorted and limited, and adaptive pooling of maps of any size.

Shape shorthand: B sets of boxes, G groups that are suppressed apart from each other, R boxes of a
set, M boxes that are left, N images, C channels, h w feature size, s side of a pooled map.
"""

from typing import Any

import torch
import torchvision
from torch import Tensor

_NO_LIMIT = 2**62


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


def translations() -> dict[Any, Any]:
    """PyTorch's operators and their ONNX functions, for ``torch.onnx.export``."""
    from onnxscript import FLOAT  # a machine that does not export has no onnxscript
    from onnxscript import opset18 as op

    def onnx_nms(boxes, scores, iou_threshold: float, score_threshold: float, limit: int):
        selected = op.NonMaxSuppression(boxes, scores, _NO_LIMIT, iou_threshold, score_threshold)
        values = op.GatherND(scores, selected)
        count = op.Shape(values)
        if limit >= 0:
            count = op.Min(count, op.Constant(value_ints=[limit]))
        _, order = op.TopK(values, count)
        return op.Gather(selected, order)

    def bins(side, s: int):
        """The weights [s, side] of pooling along one axis: cell i has the mean of the pixels from
        floor(i side / s) to ceil((i + 1) side / s)."""
        cells = op.Constant(value_ints=list(range(s)))
        starts = op.Div(op.Mul(cells, side), s)
        ends = op.Div(op.Add(op.Mul(op.Add(cells, 1), side), s - 1), s)
        pixels = op.Unsqueeze(op.Range(0, op.Squeeze(side), 1), [0])
        starts, ends = op.Unsqueeze(starts, [1]), op.Unsqueeze(ends, [1])
        inside = op.And(op.GreaterOrEqual(pixels, starts), op.Less(pixels, ends))
        return op.Div(op.Cast(inside, to=FLOAT.dtype), op.Cast(ends - starts, to=FLOAT.dtype))

    def onnx_adaptive_avg_pool2d(x, output_size):
        rows, columns = output_size
        if rows == columns == 1:
            return op.GlobalAveragePool(x)
        height, width = op.Shape(x, start=2, end=3), op.Shape(x, start=3, end=4)
        pooled = op.MatMul(x, op.Transpose(bins(width, columns), perm=[1, 0]))
        return op.MatMul(bins(height, rows), pooled)

    aten = torch.ops.aten
    return {
        torch.ops.ocr_panoptic.nms.default: onnx_nms,
        aten.adaptive_avg_pool2d.default: onnx_adaptive_avg_pool2d,
        aten._adaptive_avg_pool2d.default: onnx_adaptive_avg_pool2d,
    }
