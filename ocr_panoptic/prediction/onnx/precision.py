"""The network of an exported file in float16 or in dynamic int8, by onnxruntime's own tools; what is
before and after it (resizing, boxes, suppression, labels, merge) stays as it is."""

import ast
import logging
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

SCOPES = "pkg.torch.onnx.name_scopes"
"""Where PyTorch's exporter keeps the modules that a node comes from, the outermost first."""
QUANTIZED = ("Conv", "Gemm", "MatMul")


def convert(path: Path, precision: str) -> None:
    """
    Rewrite a file in another precision.

    Args:
        path: a file in float32 that :func:`.write_onnx` has written.
        precision: "float16", of weights and computation, or "int8", of the weights of convolutions
            and products, whose inputs are rounded to 8 bits, image by image, while it runs.
    """
    model = onnx.load(path)
    inside = [node for node in model.graph.node if _is_of_network(node)]
    if precision == "float16":
        names = {node.name for node in inside}
        outside = [node.name for node in model.graph.node if node.name not in names]
        # Shapes are those of any image: inferred ones would be wrong for a part of them.
        converted = convert_float_to_float16(
            model,
            keep_io_types=True,
            op_block_list=DEFAULT_OP_BLOCK_LIST,
            node_block_list=outside,
        )
        onnx.save(converted, path)
        return
    logging.getLogger().addFilter(_is_no_advice)
    try:
        quantize_dynamic(
            model,
            path,
            weight_type=QuantType.QUInt8,  # onnxruntime's convolution has no other
            nodes_to_quantize=[node.name for node in inside if node.op_type in QUANTIZED],
        )
    finally:
        logging.getLogger().removeFilter(_is_no_advice)


def _is_of_network(node: onnx.NodeProto) -> bool:
    scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "[]")
    modules = [scope for scope in ast.literal_eval(scopes) if scope.startswith("model.")]
    return bool(modules) and "anchor_generator" not in modules[0]


def _is_no_advice(record: logging.LogRecord) -> bool:
    """Whether a record says something else than to prepare the model first, which is optional."""
    return "pre-processing" not in record.getMessage()
