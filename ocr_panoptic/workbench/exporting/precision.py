"""
The network of an exported model in float16 or in dynamic int8. What is before and after it (the
image's resizing, boxes, suppression, labels, merge) stays as it is. In float16, two things in the
network stay in float32: what is cast to it (sizes and indices: above 2,048 float16 lacks odd
numbers) with what is computed from that alone, and each softmax of the semantic head with the
products before and after it, sums over pixels among them, that have no weights. Other sums are
float16.
onnxruntime's own tools give files that it does not load: they lose count of names in graphs with
loops.
"""

import ast

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, ShapeInferencePass
from onnxscript.optimizer import optimize

SCOPES = "pkg.torch.onnx.name_scopes"
"""Where PyTorch's exporter keeps the modules that a node comes from, the outermost first."""
OWN_TYPE = ("Constant", "ConstantOfShape", "Range", "CumSum", "Loop", "If")
"""Operators that stay in float32."""
FLOAT32_INPUTS = {"Resize": (1, 2)}  # places in the image and ratios
PRODUCTS = ("Conv", "Gemm", "MatMul")
"""Operators that may have weights."""
HEAD = "model.sem_seg_head"
FLOAT, FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16
MIDDLE = 128
"""Of whole weights, what stands for 0: onnxruntime has no convolution of signed ones."""
LARGEST = 2**28
"""Elements of weights that are computed from others beforehand."""


def converted(model: ir.Model, precision: str) -> ir.Model:
    """
    Return a network in another precision.

    Args:
        model: as PyTorch's exporter has made it; changed.
        precision: "float16", of weights and computation; "int8", of the weights of convolutions
            and linear layers, and of their inputs, which are rounded to 8 bits while it runs, image
            by image; "float32".
    """
    if precision == "float32":
        return model
    model = optimize(model, input_size_limit=LARGEST, output_size_limit=LARGEST)
    ShapeInferencePass()(model)
    nodes = [node for node in model.graph if _is_of_network(node)]
    (_to_float16 if precision == "float16" else _to_int8)(model.graph, nodes)
    RemoveUnusedNodesPass()(model)
    return model


def _modules(node: ir.Node) -> list[str]:
    scopes = ast.literal_eval(node.metadata_props.get(SCOPES, "[]"))
    return [scope for scope in scopes if scope.startswith("model.")]


def _is_of_network(node: ir.Node) -> bool:
    modules = _modules(node)
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    return (
        bool(modules)
        and "anchor_generator" not in modules[0]
        and node.op_type not in OWN_TYPE
        and all(value.dtype is not None for value in values)
    )


def _to_float16(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    precise = _cast_numbers(nodes) | _softmaxes(nodes)
    nodes = [node for node in nodes if node not in precise]
    inside, halves = set(nodes), {}
    results = [value for node in nodes for value in node.outputs if value.dtype == FLOAT]
    for value in results:
        value.dtype = FLOAT16
    for node in nodes:
        for i, value in enumerate(node.inputs):
            if value is None or _is_kept(node, i) or value.dtype != FLOAT:
                continue
            if value not in halves and value.const_value is not None:
                half = _rounded(value.const_value.numpy())
                halves[value] = _constant(graph, f"{value.name}.float16", half)
            elif value not in halves:
                cast = ir.node("Cast", [value], {"to": FLOAT16})
                cast.outputs[0].dtype = FLOAT16
                graph.insert_before(node, cast)
                halves[value] = cast.outputs[0]
            node.replace_input_with(i, halves[value])
    for value in results:
        others = [(user, i) for user, i in value.uses() if user not in inside or _is_kept(user, i)]
        if others or value.is_graph_output():
            cast = ir.node("Cast", [value], {"to": FLOAT})
            graph.insert_after(value.producer(), cast)
            for user, i in others:
                user.replace_input_with(i, cast.outputs[0])
            _take_place(graph, value, cast.outputs[0])


def _cast_numbers(nodes: list[ir.Node]) -> set[ir.Node]:
    """Return casts, and what follows from their results and constants alone, without weights."""
    found = set()
    for node in nodes:
        given = [x for x in node.inputs if x is not None and x.dtype == FLOAT]
        given = [x for x in given if x.const_value is None]
        follows = given and all(x.producer() in found for x in given)
        if node.op_type == "Cast" or (follows and node.op_type not in PRODUCTS):
            found.add(node)
    return found


def _softmaxes(nodes: list[ir.Node]) -> set[ir.Node]:
    """Return the softmaxes of the semantic head, and what is before and after each of them up to a
    product: with it, or, where it has weights, without it."""
    inside = {x for x in nodes if x.outputs[0].dtype == FLOAT and not _has_weights(x)}
    first = [x for x in inside if x.op_type == "Softmax" and _modules(x)[0].startswith(HEAD)]
    found = set()
    for near in (ir.Node.predecessors, ir.Node.successors):
        seen, left = set(), list(first)
        while left:
            node = left.pop()
            seen.add(node)
            if node.op_type not in PRODUCTS:
                left += [other for other in near(node) if other in inside and other not in seen]
        found |= seen
    return found


def _has_weights(node: ir.Node) -> bool:
    return node.op_type in PRODUCTS and any(x.const_value is not None for x in node.inputs[:2])


def _rounded(values: np.ndarray) -> np.ndarray:
    """Return float16 values, of which finite ones stay finite, and those that are not 0 (what keeps
    a division from one by 0) do not become 0."""
    limits = np.finfo(np.float16)
    halves = np.where(np.isfinite(values), np.clip(values, limits.min, limits.max), values)
    halves = halves.astype(np.float16)
    least = np.copysign(limits.smallest_subnormal, values)
    return np.where((halves == 0) & (values != 0), least, halves).astype(np.float16)


def _to_int8(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    """Rewrite each Conv, and each plain Gemm and MatMul by a constant matrix, as products of whole
    numbers: of the input in 8 bits between its least and its largest value, and of the weights in
    8 bits, a scale for each output channel."""
    rounded: dict[ir.Value, tuple[ir.Value, ...]] = {}
    for node in nodes:
        if node.op_type not in PRODUCTS or node.inputs[1].const_value is None:
            continue
        x, weights, *bias = node.inputs
        values, is_conv = weights.const_value.numpy(), node.op_type == "Conv"
        settings = {name: attribute.value for name, attribute in node.attributes.items()}
        is_scaled = settings.get("alpha", 1) != 1 or settings.get("beta", 1) != 1
        if is_scaled or settings.get("transA", 0) or not (is_conv or values.ndim == 2):
            continue
        values = values.T if settings.get("transB", 0) else values
        axes = tuple(range(1, values.ndim)) if is_conv else 0
        scales = np.abs(values).max(axis=axes, keepdims=is_conv) / 127
        scales = np.maximum(scales, np.finfo(np.float32).tiny).astype(np.float32)
        whole = (np.rint(values / scales) + MIDDLE).astype(np.uint8)
        name, added = weights.name, []

        def apply(op_type, inputs, added=added, **settings):
            added.append(ir.node(op_type, inputs, settings))
            return added[-1].outputs[0]

        if x not in rounded:
            added.append(ir.node("DynamicQuantizeLinear", [x], num_outputs=3))
            rounded[x] = tuple(added[-1].outputs)
        bits, scale, zero = rounded[x]
        inputs = [bits, _constant(graph, f"{name}.whole", whole), zero]
        inputs.append(_constant(graph, f"{name}.middle", np.array(MIDDLE, np.uint8)))
        attributes = dict(node.attributes) if is_conv else {}
        y = apply("ConvInteger" if is_conv else "MatMulInteger", inputs, **attributes)
        of_channels = (1, -1, *[1] * (values.ndim - 2)) if is_conv else (-1,)
        scales = scales.reshape(of_channels)
        unit = apply("Mul", [scale, _constant(graph, f"{name}.scales", scales)])
        y = apply("Mul", [apply("Cast", [y], to=FLOAT), unit])
        if bias:
            shape = _constant(graph, f"{name}.shape", np.array(of_channels, np.int64))
            added_bias = apply("Reshape", [bias[0], shape]) if is_conv else bias[0]
            y = apply("Add", [y, added_bias])
        graph.insert_before(node, added)
        y.dtype = FLOAT
        _take_place(graph, node.outputs[0], y)
        node.outputs[0].replace_all_uses_with(y)
        graph.remove(node, safe=True)


def _is_kept(node: ir.Node, i: int) -> bool:
    return i in FLOAT32_INPUTS.get(node.op_type, ())


def _constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    if name not in graph.initializers:
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype))
        value.const_value = tensor
        graph.register_initializer(value)
    return graph.initializers[name]


def _take_place(graph: ir.Graph, value: ir.Value, by: ir.Value) -> None:
    """Give the place of a value among the outputs of the graph, and its name, to another."""
    for i, output in enumerate(graph.outputs):
        if output is value:
            by.name, by.shape, value.name = value.name, value.shape, None
            by.dtype = FLOAT
            graph.outputs[i] = by
