"""
The network of an exported model in float16 or in dynamic int8. What is before and after it (the
image's resizing, boxes, suppression, labels, merge) stays as it is. onnxruntime's own tools give
files that it does not load: they lose count of names in graphs with loops.
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


def _is_of_network(node: ir.Node) -> bool:
    scopes = ast.literal_eval(node.metadata_props.get(SCOPES, "[]"))
    modules = [scope for scope in scopes if scope.startswith("model.")]
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    return (
        bool(modules)
        and "anchor_generator" not in modules[0]
        and node.op_type not in OWN_TYPE
        and all(value.dtype is not None for value in values)
    )


def _to_float16(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    inside, halves = set(nodes), {}
    results = [value for node in nodes for value in node.outputs if value.dtype == FLOAT]
    for value in results:
        value.dtype = FLOAT16
    for node in nodes:
        if node.op_type == "Cast" and node.attributes["to"].as_int() == FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", FLOAT16)
        for i, value in enumerate(node.inputs):
            if value is None or _is_kept(node, i) or value.dtype != FLOAT:
                continue
            if value not in halves and value.const_value is not None:
                half = value.const_value.numpy().astype(np.float16)
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


def _to_int8(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    """Rewrite each Conv, Gemm and MatMul by constant weights as products of whole numbers: of the
    input in 8 bits between its least and its largest value, and of the weights in 8 bits, a scale
    for each output channel."""
    rounded: dict[ir.Value, tuple[ir.Value, ...]] = {}
    for node in nodes:
        is_product = node.op_type in ("Conv", "Gemm", "MatMul")
        if not is_product or node.inputs[1].const_value is None:
            continue
        x, weights, *bias = node.inputs
        values, attributes = weights.const_value.numpy(), dict(node.attributes)
        is_conv = node.op_type == "Conv"
        if node.op_type == "Gemm":
            values = values.T if attributes["transB"].as_int() else values
        scales = np.abs(values).max(axis=(1, 2, 3) if is_conv else 0, keepdims=is_conv) / 127
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
        settings = attributes if is_conv else {}
        y = apply("ConvInteger" if is_conv else "MatMulInteger", inputs, **settings)
        scales = scales.reshape(1, -1, 1, 1) if is_conv else scales
        unit = apply("Mul", [scale, _constant(graph, f"{name}.scales", scales)])
        y = apply("Mul", [apply("Cast", [y], to=FLOAT), unit])
        if bias:
            shape = np.array([1, -1, 1, 1] if is_conv else [-1], np.int64)
            shape = _constant(graph, f"{name}.shape", shape)
            y = apply("Add", [y, apply("Reshape", [bias[0], shape])])
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
