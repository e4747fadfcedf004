"""
The stages of an ONNX file before and after its network, as separate ONNX models.

The first stage resizes test images; the last merges instances and labels into a panoptic map. Both
use only operators and types that TensorRT and OpenVINO can parse.

Shape shorthand: H W size of the image, h w size of the network's input, M instances, s side of a
mask, T thing classes, K semantic classes, S segments.
"""

import math

import numpy as np
import onnx_ir as ir
from detectron2.data import transforms as T
from onnx_ir.convenience import replace_all_uses_with
from onnx_ir.passes.common import InlinePass, NameFixPass
from onnxscript import BOOL, DOUBLE, FLOAT, INT32, INT64, UINT8, OnnxFunction, script
from onnxscript import opset18 as op
from onnxscript.optimizer import optimize
from PIL import Image

from ocr_panoptic.errors import UserError
from ocr_panoptic.modeling.panoptic_merge import MergeRules

REACH = {Image.Resampling.BILINEAR: 1.0, Image.Resampling.BICUBIC: 2.0}
"""Interpolation -> number of pixels that it uses on each side when it enlarges an image."""
SEGMENT_OUTPUTS = ("ids", *(f"segment_{key}" for key in ("isthing", "classes", "scores", "boxes")))
"""Names of the outputs of :func:`merge_stage`."""

PIXELS, RESIZED, MAP = UINT8["H", "W", 3], INT32["h", "w", 3], INT32["H", "W"]
FOUND_BOXES, FOUND_SCORES, FOUND_CLASSES = FLOAT["M", 4], FLOAT["M"], INT64["M"]
FOUND_MASKS, BY_THING, BY_LABEL = FLOAT["M", "s", "s"], FLOAT["T"], INT64["K"]
IS_THING, CLASSES, SCORES, BOXES = BOOL["S"], INT64["S"], FLOAT["S"], FLOAT["S", 4]


def resize_stage(augmentation: T.Augmentation) -> ir.Model:
    """
    Return an ONNX model that resizes test images exactly as :func:`.image_input.resized` does.

    The model turns "image", uint8 [H, W, 3], into "resized", int32 [h, w, 3], and "size" (H and W),
    int64 [2]. UserError is raised if ``augmentation`` cannot be exported.
    """
    is_list = isinstance(augmentation, T.AugmentationList)
    (given,) = augmentation.augs if is_list else (augmentation,)
    if type(given) in (T.Resize, T.ResizeShortestEdge) and given.interp in REACH:
        resize = _model(resized_image, reach=np.float64(REACH[given.interp]))
        if isinstance(given, T.Resize):
            return _with_constants(resize, sides=np.array(given.shape, np.int64))
        shortest, *others = set(given.short_edge_length)
        if not others:
            limits = {"shortest": np.float64(shortest), "longest": np.float64(given.max_size)}
            sides = _model(shortest_edge, **limits)
            return joined(sides, resize) if shortest else _model(unchanged)
    raise UserError(f"{augmentation}: resizing test images in this way cannot be exported")


def merge_stage(rules: MergeRules) -> ir.Model:
    """Return an ONNX model that merges labels and instances by the given rules."""
    # Scores are compared as float32, so each limit is rounded up to the next float32.
    scores = np.array(rules.scores, np.float32)
    above = np.nextafter(scores, np.float32(np.inf))
    areas = [math.ceil(min(area, 2.0**62)) for area in rules.stuff_areas]
    return _model(
        merged,
        overlap=np.float64(rules.overlap),
        least_scores=np.where(scores < np.array(rules.scores), above, scores),
        least_areas=np.array(areas, np.int64),
    )


def joined(first: ir.Model, second: ir.Model) -> ir.Model:
    """
    Append ``second`` to ``first`` in place, and return ``first`` with the outputs of both models.

    Each input of ``second`` is connected to the input or output of ``first`` with the same name.
    """
    graph, behind = first.graph, second.graph
    known = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    for value in behind.inputs:
        if value.name in known:
            replace_all_uses_with(value, known[value.name])
        else:
            graph.inputs.append(value)
    nodes, constants = list(behind), list(behind.initializers.values())
    outputs = list(behind.outputs)
    for held in (behind.inputs, behind.outputs, behind.initializers):
        held.clear()
    behind.remove(nodes)
    for constant in constants:
        graph.register_initializer(constant)
    graph.extend(nodes)
    graph.outputs.extend(outputs)
    NameFixPass()(first)
    return first


def _model(function: OnnxFunction, **constants: np.ndarray | np.generic) -> ir.Model:
    """Return a function as an ONNX model whose inputs named in ``constants`` are constant."""
    model = ir.from_proto(function.to_model_proto())
    InlinePass()(model)
    model = optimize(model)
    for value in list(model.graph.initializers.values()):
        value.name = f"{function.name}.{value.name}"  # stays unique when models are joined
    return _with_constants(model, **constants)


def _with_constants(model: ir.Model, **constants: np.ndarray | np.generic) -> ir.Model:
    for value in list(model.graph.inputs):
        if value.name in constants:
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(constants[value.name], name=value.name)
            model.graph.register_initializer(value)
    return model


@script(default_opset=op)
def unchanged(image: PIXELS) -> tuple[RESIZED, INT64[2]]:
    """Return the image with unchanged values, and its (height, width)."""
    resized = op.Cast(image, to=INT32.dtype)
    size = op.Shape(image, start=0, end=2)
    return resized, size


@script(default_opset=op)
def shortest_edge(image: PIXELS, shortest: DOUBLE, longest: DOUBLE) -> INT64[2]:
    """
    Return exactly the (height, width) that Detectron2's ResizeShortestEdge computes.

    The shorter side becomes ``shortest``, or less if the longer side would exceed ``longest``.
    """
    given = op.Cast(op.Shape(image, start=0, end=2), to=DOUBLE.dtype)
    height, width = op.Split(given, num_outputs=2)
    scale = shortest / op.Min(height, width)
    tall = op.Where(height < width, shortest, scale * height)
    wide = op.Where(height < width, scale * width, shortest)
    longer = op.Max(tall, wide)
    scale = op.Where(longer > longest, longest / longer, op.Cast(1.0, to=DOUBLE.dtype))
    exact = op.Concat(tall * scale, wide * scale, axis=0)
    sides = op.Cast(exact + 0.5, to=INT64.dtype)
    return sides


@script(default_opset=op)
def resized_rows(x: INT32[...], side: INT64[1], reach: DOUBLE) -> INT32[...]:
    """
    Return ``x``, [A, B, C], resized to [A, side, C] with Pillow's bilinear or bicubic filter.

    ``reach`` is 1.0 for the bilinear (triangle) filter, 2.0 for the bicubic filter.
    """
    length = op.Shape(x, start=1, end=2)
    last = op.Squeeze(length, [0]) - 1
    scale = op.Cast(length, to=DOUBLE.dtype) / op.Cast(side, to=DOUBLE.dtype)
    wider = op.Max(scale, op.Cast(1.0, to=DOUBLE.dtype))
    support = reach * wider
    places = op.Range(0, op.Squeeze(side, [0]), 1)
    centers = (op.Cast(places, to=DOUBLE.dtype) + 0.5) * scale
    starts = op.Max(op.Cast(centers - support + 0.5, to=INT64.dtype), 0)
    count = op.Squeeze(op.Cast(op.Ceil(support), to=INT64.dtype), [0]) * 2 + 1
    steps = op.Unsqueeze(op.Range(0, count, 1), [1])
    taken = op.Unsqueeze(starts, [0]) + steps  # [taps, side]
    inside = taken < length
    # All weights are integers, in units of 2**-22. The triangle's weights are also computed in
    # integers, because runtimes without float64 would round them differently: each tap's share of
    # the sum, in two steps of 11 bits.
    apart = op.Abs((taken * 2 + 1) * side - (places * 2 + 1) * length)
    shares = op.Where(inside, op.Max(op.Max(length, side) * 2 - apart, 0), 0)
    total = op.ReduceSum(shares, [0])
    upper = shares * 2048 / total
    rest = (shares * 2048 - upper * total) * 2048
    lower = rest / total
    nearer = op.Cast((rest - lower * total) * 2 >= total, to=INT64.dtype)
    triangle = op.Cast(upper * 2048 + lower + nearer, to=INT32.dtype)
    # The cubic filter's weights, rounded away from 0.
    away = op.Abs((op.Cast(taken, to=DOUBLE.dtype) - centers + 0.5) * (1.0 / wider))
    zero = op.Cast(0.0, to=DOUBLE.dtype)
    near = ((away * 1.5) - 2.5) * away * away + 1.0
    far = (((away - 5.0) * away + 8.0) * away - 4.0) * -0.5
    cubic = op.Where(away < 1.0, near, op.Where(away < 2.0, far, zero))
    cubic = op.Where(inside, cubic, zero)
    cubic = cubic / op.ReduceSum(cubic, [0]) * 4194304.0
    cubic = op.Cast(cubic + op.Sign(cubic) * 0.5, to=INT32.dtype)
    weights = op.Where(reach == 1.0, triangle, cubic)
    total = op.Cast(2097152, to=INT32.dtype)
    total = op.Expand(total, op.Concat(op.Shape(x, end=1), side, op.Shape(x, start=2), axis=0))
    for tap in range(count):
        pixels = op.Gather(x, op.Min(op.Gather(taken, tap), last), axis=1)
        weight = op.Unsqueeze(op.Gather(weights, tap), [1])
        total = total + pixels * weight
    total = op.Min(total, op.Cast(1069547520, to=INT32.dtype))  # 255 * 2**22
    none, unit = op.Cast(0, to=INT32.dtype), op.Cast(4194304, to=INT32.dtype)
    found = total / unit
    # A runtime that divides in float32 may give a quotient that is 1 too large.
    found = found - op.Cast(total - found * unit < none, to=INT32.dtype)
    return op.Max(found, none)


@script(default_opset=op)
def resized_image(image: PIXELS, sides: INT64[2], reach: DOUBLE) -> tuple[RESIZED, INT64[2]]:
    """
    Return the image resized to ``sides`` (height, width), and the original (height, width).

    ``reach`` is 1.0 for bilinear, 2.0 for bicubic resizing.
    """
    size = op.Shape(image, start=0, end=2)
    height, width = op.Split(sides, num_outputs=2)
    rows = resized_rows(op.Cast(image, to=INT32.dtype), width, reach)
    one = op.Constant(value_ints=[1])
    flat = op.Reshape(rows, op.Concat(one, op.Shape(image, start=0, end=1), op.Neg(one), axis=0))
    columns = resized_rows(flat, height, reach)
    resized = op.Reshape(columns, op.Concat(sides, op.Constant(value_ints=[3]), axis=0))
    return resized, size


@script(default_opset=op)
def bilinear_weights(
    start: INT64[1], stop: INT64[1], low: FLOAT[1], high: FLOAT[1], mask: FLOAT[...]
) -> FLOAT[...]:
    """
    Return weights [pixels, s] that resize a mask, [s, s], bilinearly along one axis.

    The pixels are ``start`` to ``stop`` - 1. The mask extends from ``low`` to ``high`` in pixels;
    outside the mask, the weights fall to 0.
    """
    places = op.Range(op.Squeeze(start, [0]), op.Squeeze(stop, [0]), 1)
    pixels = op.Cast(places, to=FLOAT.dtype) + 0.5
    side = op.Shape(mask, start=0, end=1)
    cells = op.Cast(op.Range(0, op.Squeeze(side, [0]), 1), to=FLOAT.dtype)
    places = (pixels - low) / (high - low) * op.Cast(side, to=FLOAT.dtype) - 0.5
    return op.Max(1.0 - op.Abs(op.Unsqueeze(places, [1]) - cells), 0.0)


@script(default_opset=op)
def count_pixels(pixels: BOOL[...]) -> INT64[...]:
    """Return the number of True pixels."""
    # Sums of rows in float32 are fast, and exact for rows shorter than 2**24 pixels.
    rows = op.ReduceSum(op.Cast(pixels, to=FLOAT.dtype), op.Constant(value_ints=[1]), keepdims=0)
    return op.ReduceSum(op.Cast(rows, to=INT64.dtype), keepdims=0)


@script(default_opset=op)
def merged(
    labels: MAP,
    boxes: FOUND_BOXES,
    scores: FOUND_SCORES,
    classes: FOUND_CLASSES,
    masks: FOUND_MASKS,
    overlap: DOUBLE,
    least_scores: BY_THING,
    least_areas: BY_LABEL,
) -> tuple[MAP, IS_THING, CLASSES, SCORES, BOXES]:
    """
    Merge labels and instances into a panoptic map, like :func:`.merge_panoptic`.

    Instances must be in descending order of scores; each mask [s, s] covers only its instance's
    box. The result is the map and its segments.

    Args:
        overlap: an instance is dropped if instances with higher scores have taken more than this
            share of its pixels.
        least_scores: lowest score of an instance that is used, for each thing class.
        least_areas: smallest area of a stuff segment outside all instances, for each label.
    """
    begin, end = op.Split(boxes, num_outputs=2, axis=1)
    used = op.And(
        scores >= op.Gather(least_scores, classes), op.ReduceMin(end - begin, [1], keepdims=0) > 0.0
    )
    kept = op.Squeeze(op.NonZero(op.Cast(used, to=FLOAT.dtype)), [0])
    boxes, scores = op.Gather(boxes, kept), op.Gather(scores, kept)
    classes, masks = op.Gather(classes, kept), op.Gather(masks, kept)
    number = op.Range(0, op.Squeeze(op.Shape(scores), [0]), 1)
    used = op.Not(number == number)
    size = op.Shape(labels)
    numbers = labels - labels
    count = op.Cast(0, to=INT32.dtype)
    for i in range(op.Squeeze(op.Shape(scores), [0])):
        x0, y0, x1, y1 = op.Split(op.Gather(boxes, i), num_outputs=4)
        begin = op.Concat(y0, x0, axis=0)
        end = op.Concat(y1, x1, axis=0)
        starts = op.Max(op.Cast(op.Floor(begin), to=INT64.dtype) - 1, 0)
        stops = op.Min(op.Cast(op.Ceil(end), to=INT64.dtype) + 1, size)
        top, left = op.Split(starts, num_outputs=2)
        bottom, right = op.Split(stops, num_outputs=2)
        mask = op.Gather(masks, i)
        down = bilinear_weights(top, bottom, y0, y1, mask)
        across = bilinear_weights(left, right, x0, x1, mask)
        covered = op.MatMul(op.MatMul(down, mask), op.Transpose(across, perm=[1, 0])) >= 0.5
        region = op.Slice(numbers, starts, stops, op.Constant(value_ints=[0, 1]))
        free = op.And(covered, region == op.Cast(0, to=INT32.dtype))
        area = count_pixels(covered)
        free_area = count_pixels(free)
        share = op.Cast(area - free_area, to=DOUBLE.dtype) / op.Cast(area, to=DOUBLE.dtype)
        good = op.And(area > 0, op.Not(share > overlap))
        count = count + op.Cast(good, to=INT32.dtype)
        own = op.Cast(op.And(free, good), to=INT32.dtype) * count
        numbers = numbers + op.Pad(own, op.Concat(starts, size - stops, axis=0))
        used = op.Or(used, op.And(number == i, good))
    flat = op.Cast(op.Reshape(labels, [-1]), to=INT64.dtype)
    free = op.Cast(op.Reshape(numbers, [-1]) == op.Cast(0, to=INT32.dtype), to=INT64.dtype)
    zeros = least_areas - least_areas
    areas = op.ScatterElements(zeros, flat, free, axis=0, reduction="add")
    seen = op.ScatterElements(zeros, flat, op.Expand(1, op.Shape(flat)), axis=0, reduction="add")
    label = op.Range(0, op.Squeeze(op.Shape(zeros), [0]), 1)
    is_stuff = op.And(op.And(seen > 0, areas >= least_areas), label > 0)  # label 0 means thing
    place = op.Cast(op.CumSum(op.Cast(is_stuff, to=FLOAT.dtype), 0), to=INT32.dtype) + count
    place = op.Where(is_stuff, place, op.Cast(0, to=INT32.dtype))
    ids = op.Where(numbers == op.Cast(0, to=INT32.dtype), op.Gather(place, labels), numbers)
    kept = op.Squeeze(op.NonZero(op.Cast(used, to=FLOAT.dtype)), [0])
    stuff = op.Squeeze(op.NonZero(op.Cast(is_stuff, to=FLOAT.dtype)), [0])
    things = op.Gather(classes, kept)
    are_things, are_stuff = op.Expand(True, op.Shape(things)), op.Expand(False, op.Shape(stuff))
    segment_isthing = op.Concat(are_things, are_stuff, axis=0)
    segment_classes = op.Concat(things, stuff, axis=0)
    segment_scores = op.Concat(op.Gather(scores, kept), op.Expand(0.0, op.Shape(stuff)), axis=0)
    no_box = op.Constant(value_floats=[0.0, 0.0, 0.0, 0.0])
    no_boxes = op.Expand(no_box, op.Concat(op.Shape(stuff), op.Constant(value_ints=[4]), axis=0))
    segment_boxes = op.Concat(op.Gather(boxes, kept), no_boxes, axis=0)
    return ids, segment_isthing, segment_classes, segment_scores, segment_boxes
