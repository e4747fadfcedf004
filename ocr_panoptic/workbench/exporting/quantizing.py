"""
Rounds the layers of an ONNX file to 8 bits, with ranges measured on images (static quantisation).

A rounded tensor is stored as q = clamp(round(x / scale) + zero, 0, 255). Each layer with constant
weights gets its input, weights (int8, a scale for each output channel), bias (int32) and output in
this form. They are written as pairs of QuantizeLinear and DequantizeLinear, which runtimes fuse
with the layer. All other computations see the dequantised values in float32.
"""

import ast
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import onnxruntime
import torch

WEIGHTED = ("Conv", "Gemm", "MatMul")
"""Operators that are layers if their second input is constant."""
PRODUCTS = ("Gemm", "MatMul")
"""Layers that compute in 8 bits even if their output is not rounded."""
SAME_GRID = ("MaxPool", "Resize", "Transpose")
"""Operators between layers that stay in 8 bits, with the grid of their input."""
OWN_GRID = ("Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu")
"""Operators between layers that stay in 8 bits, with a grid of their own."""


class Grid(NamedTuple):
    """The numbers that 8 bits can stand for: (q - zero) * scale for q in 0..255."""

    scale: np.float32
    zero: np.uint8


Grids = Mapping[str, Grid]  # by the tensor's name


class Plan(NamedTuple):
    """The nodes that compute in 8 bits: layers by name, and the nodes between layers."""

    layers: dict[str, list[ir.Node]]
    between: list[ir.Node]

    @property
    def nodes(self) -> list[ir.Node]:
        return [*(node for nodes in self.layers.values() for node in nodes), *self.between]


def quantize(file: Path, output: Path, grids: Grids, kept: Collection[str] = ()) -> None:
    """
    Write an ONNX file whose layers compute in 8 bits.

    Args:
        file: ONNX file in float32.
        output: file to write.
        grids: result of :func:`measure_grids`. Nodes without a grid stay in float32.
        kept: names of layers that stay in float32.
    """
    model = _loaded(file)
    plan, graph = _plan(model, kept, grids), model.graph
    grid_of: dict[ir.Value, Grid] = {}  # for each value to be rounded
    limited = set()  # values whose activation the limits of the grid replace
    for node in plan.nodes:
        result, value = _result(node), node.outputs[0]
        grid_of[value] = grids[result.name]
        if result is not value:
            limited.add(value)
            activation = result.producer()
            _replace_output(result, value)
            result.replace_all_uses_with(value)
            graph.remove(activation, safe=True)
    inside, produced = {*plan.nodes}, {*grid_of}
    for node in plan.nodes:
        for value in _sources(node):
            if value not in grid_of:
                grid_of[value] = grids[value.name]
    for node in graph:
        if node in inside and node.op_type in SAME_GRID:
            grid_of[node.outputs[0]] = grid_of[node.inputs[0]]
    for node in (node for nodes in plan.layers.values() for node in nodes):
        _round_weights(graph, node, grid_of[node.inputs[0]])
    for value, grid in grid_of.items():
        users = [use for use in value.uses() if use.node in inside]
        if value not in produced:  # other operators see the exact value
            rounded = _rounded(graph, value, grid)
            for node, index in users:
                node.replace_input_with(index, rounded)
        elif users or value in limited or value.producer().op_type not in PRODUCTS:
            exact = [use for use in value.uses() if use.node not in inside]
            rounded = _rounded(graph, value, grid)
            for node, index in (*users, *exact):
                node.replace_input_with(index, rounded)
            _replace_output(value, rounded)
    _remove_unused(graph)
    ir.save(model, output)


def measure_grids(file: Path, images: Iterable[np.ndarray]) -> dict[str, Grid]:
    """
    Return the grid of each tensor that may be rounded, which covers its values for some images.

    Tensors that are empty or 0 for all images, e.g. masks if nothing is detected, have no grid.

    Args:
        file: ONNX file in float32.
        images: images, each uint8 [H, W, 3] RGB.
    """
    model = _loaded(file)
    nodes = _plan(model).nodes
    values = dict.fromkeys(v for node in nodes for v in (*_sources(node), _result(node)))
    ends = [_after(v, kind, [v], keepdims=0) for v in values for kind in ("ReduceMin", "ReduceMax")]
    found = _run(model, ends, images)
    lows, highs = found.min(axis=0)[::2], found.max(axis=0)[1::2]
    lows, highs = np.minimum(lows, 0), np.maximum(highs, 0)  # 0 is exact, e.g. for padding
    return {
        value.name: _grid(low, high)
        for value, low, high in zip(values, lows, highs, strict=True)
        if low < high
    }


def layer_errors(file: Path, grids: Grids, images: Iterable[np.ndarray]) -> dict[str, float]:
    """
    Return the error of each layer of a float32 file if that layer alone is rounded.

    The error is the root mean square of the change of the layer's output, relative to the root
    mean square of the output. Arguments are described in :func:`measure_grids`.
    """
    model = _loaded(file)
    graph, ends, names = model.graph, [], []
    rounded: dict[ir.Value, ir.Value] = {}
    for name, nodes in _plan(model, grids=grids).layers.items():
        for node in nodes:
            source, exact, result = node.inputs[0], node.outputs[0], _result(node)
            alone = _after(exact, node.op_type, node.inputs, **node.attributes)
            _round_weights(graph, alone.producer(), grids[source.name])
            if source not in rounded:
                rounded[source] = _rounded(graph, source, grids[source.name])
            alone.producer().replace_input_with(0, rounded[source])
            if result is not exact:
                activation = result.producer()
                inputs = [alone, *activation.inputs[1:]]
                alone = _after(result, activation.op_type, inputs, **activation.attributes)
            alone = _rounded(graph, alone, grids[result.name])
            change = _after(alone, "Sub", [alone, result])
            names.append(name)
            ends += [_after(v, "ReduceSumSquare", [v], keepdims=0) for v in (change, result)]
    totals = _run(model, ends, images).astype(float).sum(axis=0).reshape(-1, 2)
    summed: dict[str, Any] = defaultdict(lambda: np.zeros(2))
    for name, pair in zip(names, totals, strict=True):
        summed[name] += pair
    return {name: float(np.sqrt(a / max(b, 1e-30))) for name, (a, b) in summed.items()}


def _loaded(file: Path) -> ir.Model:
    """
    Return the model of a file, in which the last 1x1 convolutions are matrix products.

    Runtimes do not round the result of a product, so scores and boxes stay precise.
    """
    model = ir.load(file)
    plan, graph = _plan(model), model.graph
    inside = {*plan.nodes}
    for node in (node for nodes in plan.layers.values() for node in nodes):
        x, weight, bias = (*node.inputs, None)[:3]
        is_last = not any(use.node in inside for use in _result(node).uses())
        if not (is_last and _result(node) is node.outputs[0] and _is_pixelwise(node)):
            continue
        matrix = weight.const_value.numpy()[:, :, 0, 0].T.copy()
        value = _after(node.outputs[0], "Transpose", [x], perm=[0, 2, 3, 1])
        value = _after(value, "MatMul", [value, _initializer(graph, f"{weight.name}.T", matrix)])
        value.producer().metadata_props.update(node.metadata_props)
        if bias is not None:
            value = _after(value, "Add", [value, bias])
        value = _after(value, "Transpose", [value], perm=[0, 3, 1, 2])
        _replace_output(node.outputs[0], value)
        node.outputs[0].replace_all_uses_with(value)
        graph.remove(node, safe=True)
    _remove_unused(graph)
    return model


def _remove_unused(graph: ir.Graph) -> None:
    """Remove constants without a use, such as weights in float32."""
    for name, value in list(graph.initializers.items()):
        if not value.uses():
            del graph.initializers[name]


def _replace_output(value: ir.Value, other: ir.Value) -> None:
    """If a value is an output of the graph, make another value this output."""
    if value.is_graph_output():
        outputs = value.graph.outputs
        other.name, value.name = value.name, f"{value.name}.exact"
        other.type, other.shape = value.type, value.shape
        outputs[:] = [other if given is value else given for given in outputs]


def _is_pixelwise(node: ir.Node) -> bool:
    """Return whether a node is a plain convolution with a kernel of one pixel."""
    if node.op_type != "Conv" or tuple(node.inputs[1].shape)[2:] != (1, 1):
        return False
    plain = {"strides": 1, "dilations": 1, "pads": 0}
    sizes = {key: node.attributes.get_ints(key, [value]) for key, value in plain.items()}
    return node.attributes.get_int("group", 1) == 1 and all(
        set(sizes[key]) == {value} for key, value in plain.items()
    )


def _plan(model: ir.Model, kept: Collection[str] = (), grids: Grids | None = None) -> Plan:
    layers: dict[str, list[ir.Node]] = defaultdict(list)
    produced: set[ir.Value] = set()  # results of nodes in 8 bits
    between = []
    for node in model.graph:
        if name := layer_name(node):
            if name not in kept and _has_grids(node, grids):
                layers[name].append(node)
                produced.add(_result(node))
        elif not _has_grids(node, grids):
            continue
        elif node.op_type in SAME_GRID + OWN_GRID and produced.issuperset(_sources(node)):
            between.append(node)
            produced.add(_result(node))
    inside = {node for nodes in layers.values() for node in nodes}
    used = []
    for node in reversed(between):
        if any(use.node in inside for use in _result(node).uses()):
            inside.add(node)
            used.append(node)
    return Plan(layers, used[::-1])


def _has_grids(node: ir.Node, grids: Grids | None) -> bool:
    return grids is None or all(value.name in grids for value in (*_sources(node), _result(node)))


def layer_name(node: ir.Node) -> str:
    """Return the name of the module that a node computes; "" if the node is no layer."""
    if node.op_type not in WEIGHTED or _constant(node.inputs[1]) is None:
        return ""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and _constant(bias) is None:
        return ""
    module = node.inputs[1].name
    scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes")  # of PyTorch's exporter
    if scopes and not module.endswith(".weight"):  # folded weights have no name
        module = ast.literal_eval(scopes)[-2]
    return module.removeprefix("model.").removesuffix(".weight")


def _constant(value: ir.Value) -> np.ndarray | None:
    return None if value.const_value is None else value.const_value.numpy()


def _sources(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of a node that are rounded as activations."""
    return list(node.inputs if node.op_type in ("Add", "Concat") else node.inputs[:1])


def _result(node: ir.Node) -> ir.Value:
    """Return a node's output, or the output of the activation that is its only use."""
    (value,) = node.outputs[:1]
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output() or node.op_type in SAME_GRID:
        return value
    (user,) = (use.node for use in uses)
    low = _constant(user.inputs[1]) if user.op_type == "Clip" and user.inputs[1] else None
    is_replaced = user.op_type == "Relu" or (low is not None and low == 0)
    return user.outputs[0] if is_replaced and user.graph is node.graph else value


def _grid(low: np.float32, high: np.float32) -> Grid:
    scale = np.float32(max(high - low, np.float32(1e-12)) / 255)
    return Grid(scale, np.uint8(np.clip(np.round(-low / scale), 0, 255)))


def _round_weights(graph: ir.Graph, node: ir.Node, grid: Grid) -> None:
    """Store the weights and the bias of a layer in 8 and 32 bits; ``grid`` is its input's."""
    weights = node.inputs[1].const_value.numpy()
    is_last = node.op_type == "MatMul" or (
        node.op_type == "Gemm" and not node.attributes.get_int("transB", 0)
    )
    axis = weights.ndim - 1 if is_last else 0
    others = tuple(i for i in range(weights.ndim) if i != axis)
    scales = np.maximum(np.abs(weights).max(axis=others) / np.float32(127), np.float32(1e-12))
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:  # must fit into 32 bits
        values = bias.const_value.numpy()
        scales = np.maximum(scales, np.abs(values) / (grid.scale * np.float32(2**30)))
        both = scales * grid.scale
        stored = np.round(values.astype(float) / both).astype(np.int32)
        node.replace_input_with(2, _dequantized(graph, node, "bias", stored, both, axis=0))
    shape = [-1 if i == axis else 1 for i in range(weights.ndim)]
    stored = np.round(weights / scales.reshape(shape)).clip(-127, 127).astype(np.int8)
    node.replace_input_with(1, _dequantized(graph, node, "weight", stored, scales, axis))


def _dequantized(
    graph: ir.Graph, node: ir.Node, kind: str, stored: np.ndarray, scales: np.ndarray, axis: int
) -> ir.Value:
    name = f"{node.outputs[0].name}.{kind}"
    parts = {
        "8bit": stored,
        "scale": scales.astype(np.float32),
        "zero": np.zeros_like(scales, stored.dtype),
    }
    inputs = [_initializer(graph, f"{name}.{part}", array) for part, array in parts.items()]
    made = ir.node("DequantizeLinear", inputs, {"axis": axis})
    made.outputs[0].name = f"{name}.rounded"
    graph.insert_before(node, made)
    return made.outputs[0]


def _rounded(graph: ir.Graph, value: ir.Value, grid: Grid) -> ir.Value:
    """Insert the rounding of a value behind the value; return the rounded value."""
    parameters = [
        _initializer(graph, f"{value.name}.{part}", np.array(number))
        for part, number in grid._asdict().items()
    ]
    stored = _after(value, "QuantizeLinear", [value, *parameters])
    return _after(stored, "DequantizeLinear", [stored, *parameters])


def _initializer(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    if name not in graph.initializers:
        graph.register_initializer(ir.Value(name=name, const_value=ir.tensor(array, name=name)))
    return graph.initializers[name]


def _after(
    value: ir.Value, kind: str, inputs: Sequence[ir.Value | None], **attributes: Any
) -> ir.Value:
    """Insert a node behind the node that computes ``value``; return the node's output."""
    node = ir.node(kind, inputs, attributes)
    producer = value.producer()
    producer.graph.insert_after(producer, node)
    made = node.outputs[0]
    made.name = f"{value.name}.{kind}"
    return made


def _run(model: ir.Model, ends: Sequence[ir.Value], images: Iterable[np.ndarray]) -> np.ndarray:
    """Return the values of scalars that a model computes for each image, [images, scalars]."""
    for end in ends:
        end.type, end.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
    model.graph.outputs[:] = ends
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "measured.onnx")
        ir.save(model, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        return np.array([session.run(None, {"image": image}) for image in images])
