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
from onnxscript import BOOL, FLOAT, INT32, INT64, graph, script
from onnxscript import opset18 as op
from torch import Tensor

NO_LIMIT = 2**62
TILE = 64
"""Side of the tiles in which labels are computed, in pixels."""


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


@script(default_opset=op)
def bilinear(cells: INT64[1], size: INT64[1], kept: INT64[1], corners: bool) -> FLOAT[...]:
    """Return weights [kept, cells] that resize bilinearly to ``size``, for the first pixels."""
    pixel = op.Cast(op.Range(0, op.Squeeze(kept, [0]), 1), to=FLOAT.dtype)
    small, large = op.Cast(cells, to=FLOAT.dtype), op.Cast(size, to=FLOAT.dtype)
    by_edges = (pixel + 0.5) * (small / large) - 0.5
    by_centres = pixel * ((small - 1.0) / op.Max(large - 1.0, 1.0))
    place = op.Where(op.Cast(corners, to=BOOL.dtype), by_centres, by_edges)
    place = op.Min(op.Max(place, 0.0), small - 1.0)
    cell = op.Cast(op.Range(0, op.Squeeze(cells, [0]), 1), to=FLOAT.dtype)
    return op.Max(1.0 - op.Abs(op.Unsqueeze(place, [1]) - cell), 0.0)


def _resizing(cells, padded, image, size, corners: int):
    """
    Return weights [n, cells] that resize logits along one axis, in the two steps of the labels.

    n is a multiple of TILE; rows behind ``size`` repeat the last pixel. All sizes are int64 [1].
    """
    first = bilinear(cells, padded, image, corners=corners)
    weights = op.MatMul(bilinear(image, size, size, corners=corners), first)
    none = op.Constant(value_ints=[0])
    rest = op.Mod(op.Neg(size), op.Constant(value_ints=[TILE]))
    return op.Pad(weights, op.Concat(none, none, rest, none, axis=0), mode="edge")


@script(default_opset=op)
def labels_in_tiles(
    logits: FLOAT[...], down: FLOAT[...], across: FLOAT[...], size: INT64[2]
) -> tuple[INT32[...], FLOAT[...]]:
    """
    Return the result of :func:`confident_labels`, computed in tiles of TILE x TILE pixels.

    The weights ``down``, [rows, h], and ``across``, [columns, w], resize the logits.
    """
    # All classes at full resolution (1.2 GB for 150 classes at 1024 x 2048) would need more memory
    # than the network. A tile fits into the cache, and few cells of the logits contribute to it.
    # This function is inlined into the graph, so its names must differ from the graph's outputs.
    origin = op.Constant(value_ints=[0, 0])
    axes = op.Constant(value_ints=[0, 1])
    side = op.Constant(value_ints=[TILE])
    cells = op.Transpose(op.Squeeze(logits, [0]), perm=[1, 2, 0])  # [h, w, K]
    rows = op.Shape(down, end=1) / side
    columns = op.Shape(across, end=1) / side

    @graph()
    def tile(i: INT64, go: BOOL):
        place = op.Unsqueeze(i, [0])
        row = place / columns
        column = place - row * columns
        of_rows = op.Slice(down, row * side, row * side + side, [0])
        used = op.Cast(of_rows > 0.0, to=FLOAT.dtype)
        top = op.ArgMax(op.Gather(used, 0, axis=0), axis=0)
        bottom = op.ArgMax(op.Gather(used, -1, axis=0), axis=0, select_last_index=1) + 1
        of_columns = op.Slice(across, column * side, column * side + side, [0])
        used = op.Cast(of_columns > 0.0, to=FLOAT.dtype)
        left = op.ArgMax(op.Gather(used, 0, axis=0), axis=0)
        right = op.ArgMax(op.Gather(used, -1, axis=0), axis=0, select_last_index=1) + 1
        starts = op.Concat(top, left, axis=0)
        stops = op.Concat(bottom, right, axis=0)
        part = op.Reshape(
            op.Slice(cells, starts, stops, axes), op.Concat(bottom - top, [-1], axis=0)
        )
        part = op.MatMul(op.Slice(of_rows, top, bottom, [1]), part)
        part = op.Reshape(part, op.Concat(side, right - left, [-1], axis=0))
        part = op.MatMul(op.Slice(of_columns, left, right, [1]), part)  # [TILE, TILE, K]
        chosen = op.Cast(op.ArgMax(part, axis=-1, keepdims=0), to=INT32.dtype)
        highest = op.ReduceMax(op.Softmax(part, axis=-1), [-1], keepdims=0)
        goes_on = op.Identity(go)
        return goes_on, chosen, highest

    always = op.Equal(op.Squeeze(side, [0]), op.Squeeze(side, [0]))
    chosen, highest = op.Loop(op.Squeeze(rows * columns, [0]), always, body=tile)
    tiled = op.Concat(rows, columns, side, side, axis=0)
    whole = op.Concat(rows * side, columns * side, axis=0)
    chosen = op.Reshape(op.Transpose(op.Reshape(chosen, tiled), perm=[0, 2, 1, 3]), whole)
    highest = op.Reshape(op.Transpose(op.Reshape(highest, tiled), perm=[0, 2, 1, 3]), whole)
    return op.Slice(chosen, origin, size, axes), op.Slice(highest, origin, size, axes)


def confident_labels_graph(logits, padded, image, size, align_corners: bool):
    """Build the ONNX graph of :func:`confident_labels`."""
    weights = []
    for axis in (0, 1):
        sides = (
            op.Shape(logits, start=axis + 2, end=axis + 3),
            op.Shape(padded, start=axis - 2, **({"end": -1} if axis == 0 else {})),
            op.Shape(image, start=axis, end=axis + 1),
            op.Gather(size, op.Constant(value_ints=[axis])),
        )
        weights.append(_resizing(*sides, corners=int(align_corners)))
    return labels_in_tiles(logits, *weights, size)


@torch.library.custom_op("ocr_panoptic::pool_boxes", mutates_args=())
def pool_boxes(
    maps: list[Tensor],
    scales: list[float],
    boxes: Tensor,
    levels: Tensor,
    side: int,
    ratio: int,
    aligned: bool,
) -> Tensor:
    """
    Return the features of each box, pooled by ROIAlign from the box's level, [R, C, s, s].

    Args:
        maps: feature map of each level, [1, C, h, w].
        scales: size of an image's pixel in pixels of each map.
        boxes: boxes x0, y0, x1, y1 in pixels of the image, [R, 4].
        levels: index of each box's map, int64 [R].
        side: side s of the pooled features.
        ratio: samples along each side of a pooled pixel; 0 for about one for each pixel of the map.
        aligned: whether pixel centres are at half-integers (Detectron2's "ROIAlignV2").
    """
    pooled = boxes.new_zeros(len(boxes), maps[0].shape[1], side, side)
    for level, (map_, scale) in enumerate(zip(maps, scales, strict=True)):
        own = levels == level
        padded = F.pad(boxes[own], (1, 0))
        pooled[own] = torchvision.ops.roi_align(map_, padded, side, scale, ratio, aligned)
    return pooled


@pool_boxes.register_fake
def _(maps, scales, boxes: Tensor, levels: Tensor, side: int, ratio: int, aligned: bool):
    return boxes.new_empty(boxes.shape[0], maps[0].shape[1], side, side)


@script(default_opset=op)
def pooling(
    low: FLOAT[...],
    high: FLOAT[...],
    lengths: INT64[...],
    side: INT64[1],
    ratio: FLOAT,
    least: FLOAT,
) -> tuple[FLOAT[...], INT64[...], INT64[...]]:
    """
    Return the weights of ROIAlign along one axis, for the cells of each box.

    The boxes are from ``low`` to ``high`` on maps of ``lengths`` cells. The results are the weights
    of at most T cells, the first cell, and the number of cells.
    """
    one = op.Constant(value_floats=[1.0])
    low, high = op.Unsqueeze(low, [2]), op.Unsqueeze(high, [2])  # [R, 1, 1]
    extent = op.Max(high - low, least)
    width = extent / op.Cast(side, to=FLOAT.dtype)  # of a pooled pixel
    samples = op.Where(ratio > 0.0, ratio, op.Ceil(width))  # in a pooled pixel
    most = op.ReduceMax(op.Concat(op.Reshape(samples, [-1]), one, axis=0), keepdims=0)
    samples = op.Expand(samples, op.Shape(extent))
    number = op.Range(0.0, most, 1.0)
    taken = op.Cast(number < samples, to=FLOAT.dtype) / op.Max(samples, 1.0)
    pixel = op.Range(0.0, op.Cast(op.Squeeze(side, [0]), to=FLOAT.dtype), 1.0)
    place = low + op.Unsqueeze(pixel, [1]) * width
    place = place + (number + 0.5) * width / op.Max(samples, 1.0)  # [R, s, samples]
    length = op.Unsqueeze(op.Cast(lengths, to=FLOAT.dtype), [1, 2])
    inside = op.And(place >= -1.0, place <= length)
    taken = op.Where(inside, taken, 0.0)
    place = op.Min(op.Max(place, 0.0), length - 1.0)
    first = op.Floor(op.ReduceMin(place, [1, 2]))
    last = op.Min(op.Floor(op.ReduceMax(place, [1, 2])) + 1.0, length - 1.0)
    count = op.Reshape(last - first + 1.0, [-1])
    cell = op.Range(0.0, op.ReduceMax(op.Concat(count, one, axis=0), keepdims=0), 1.0)
    shares = op.Max(1.0 - op.Abs(op.Unsqueeze(place - first, [3]) - cell), 0.0)
    weights = op.ReduceSum(shares * op.Unsqueeze(taken, [3]), [2], keepdims=0)
    first = op.Cast(op.Reshape(first, [-1]), to=INT64.dtype)
    return weights, first, op.Cast(count, to=INT64.dtype)


@script(default_opset=op)
def pooled_boxes(
    cells: FLOAT[...],
    down: FLOAT[...],
    across: FLOAT[...],
    rows: INT64[...],
    columns: INT64[...],
    corners: INT64[...],
    widths: INT64[...],
) -> FLOAT[...]:
    """
    Return the pooled features of each box, [R, C, s, s].

    ROIAlign is separable: it multiplies the cells below a box by weights of rows and of columns.

    Args:
        cells: cells of all maps, row by row and one map after the other, [P, C].
        down, across: weights of each box's rows and columns, [R, s, T].
        rows, columns: numbers of each box's rows and columns, [R].
        corners: index of each box's first cell, [R].
        widths: width of each box's map, [R].
    """
    none = op.Constant(value_ints=[0])

    @graph()
    def pool_box(i: INT64, go: BOOL):
        place = op.Unsqueeze(i, [0])
        tall, wide = op.Gather(rows, place), op.Gather(columns, place)
        row = op.Range(0, op.Squeeze(tall, [0]), 1) * op.Gather(widths, place)
        column = op.Range(0, op.Squeeze(wide, [0]), 1) + op.Gather(corners, place)
        part = op.Gather(cells, op.Unsqueeze(row, [1]) + column)  # [rows, columns, C]
        weights = op.Slice(op.Gather(down, i), none, tall, [1])
        part = op.MatMul(weights, op.Reshape(part, op.Concat(tall, [-1], axis=0)))
        part = op.Reshape(part, op.Concat([-1], wide, op.Shape(cells, start=1), axis=0))
        found = op.MatMul(op.Slice(op.Gather(across, i), none, wide, [1]), part)
        goes_on = op.Identity(go)
        return goes_on, found

    count = op.Size(rows)
    found = op.Loop(count, op.Equal(count, count), body=pool_box)
    side = op.Shape(down, start=1, end=2)
    shape = op.Concat(op.Shape(rows), side, side, op.Shape(cells, start=1), axis=0)
    return op.Transpose(op.Reshape(found, shape, allowzero=1), perm=[0, 3, 1, 2])


def pool_boxes_graph(maps, scales, boxes, levels, side: int, ratio: int, aligned: bool):
    """Build the ONNX graph of :func:`pool_boxes`."""
    cells = [op.Squeeze(op.Transpose(m, perm=[0, 2, 3, 1]), [0]) for m in maps]  # [h, w, C]
    heights = op.Concat(*(op.Shape(c, end=1) for c in cells), axis=0)
    widths = op.Concat(*(op.Shape(c, start=1, end=2) for c in cells), axis=0)
    channels = op.Shape(maps[0], start=1, end=2)
    shape = op.Concat(op.Constant(value_ints=[-1]), channels, axis=0)
    flat = [op.Reshape(c, shape) for c in cells]
    starts = op.CumSum(op.Mul(heights, widths), op.Constant(value_int=0), exclusive=1)
    heights, widths, starts = (op.Gather(x, levels) for x in (heights, widths, starts))
    scale = op.Gather(op.Constant(value_floats=list(scales)), levels)
    boxes = op.Sub(op.Mul(boxes, op.Unsqueeze(scale, [1])), 0.5 if aligned else 0.0)
    x0, y0, x1, y1 = op.Split(boxes, num_outputs=4, axis=1)
    sizes = (
        op.Constant(value_ints=[side]),
        op.Constant(value_float=float(ratio)),
        op.Constant(value_float=0.0 if aligned else 1.0),
    )
    down, top, rows = pooling(y0, y1, heights, *sizes)
    across, left, columns = pooling(x0, x1, widths, *sizes)
    corners = op.Add(op.Add(starts, op.Mul(top, widths)), left)
    return pooled_boxes(op.Concat(*flat, axis=0), down, across, rows, columns, corners, widths)


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
    torch.ops.ocr_panoptic.pool_boxes.default: pool_boxes_graph,
    torch.ops.aten.adaptive_avg_pool2d.default: adaptive_avg_pool2d,
    torch.ops.aten._adaptive_avg_pool2d.default: adaptive_avg_pool2d,
}
"""PyTorch operator -> ONNX graph, for ``torch.onnx.export``."""
