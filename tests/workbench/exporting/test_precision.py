"""Networks in float16 and in int8 beside the same arithmetic in PyTorch and NumPy."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx_ir.passes.common import NameFixPass
from torch import nn

from ocr_panoptic.cli.export import export
from ocr_panoptic.workbench.exporting.parity import is_finite
from ocr_panoptic.workbench.exporting.precision import SCOPES, converted

IMAGE = torch.linspace(-1, 3, 3 * 8 * 12).sin().reshape(1, 3, 8, 12)


class Anchors(nn.Module):
    """Coordinates that float16 does not have."""

    def forward(self, x):
        return x + 4097.25


class Wrapped(nn.Module):
    """A network as the graphs of an export hold it, with arithmetic of their own around it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)),
            *(nn.Flatten(2), nn.Linear(384, 5, bias=False)),
        ).requires_grad_(False)
        self.model = nn.ModuleDict({"layers": layers, "anchor_generator": Anchors()})

    @property
    def layers(self) -> nn.Sequential:
        return self.model["layers"]

    def forward(self, x):
        y = self.layers(x / 3)
        return y, self.model["anchor_generator"](y)


def run(model: ir.Model) -> list[np.ndarray]:
    NameFixPass()(model)  # as where the parts of a file are joined
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, {"x": IMAGE.numpy()})


@pytest.fixture
def exported():
    names = {"input_names": ["x"], "output_names": ["y", "z"], "opset_version": 18}
    return torch.onnx.export(Wrapped().eval(), (IMAGE,), verbose=False, **names).model


def rounded(x: np.ndarray) -> np.ndarray:
    """ONNX's DynamicQuantizeLinear, and back."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = (high - low) / 255
    zero = np.rint(-low / scale)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def rounded_weights(w: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    scale = np.abs(w).max(axis=axes, keepdims=True) / 127
    return np.rint(w / scale) * scale


def parsed(text: str, weights: dict[str, np.ndarray]) -> ir.Model:
    """A part of the semantic head from x to o, in ONNX's syntax, which gives the numbers of o."""
    proto = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]> g (float[1, 3, 8, 12] x) => (float[n] y) {{
            {text} all = Constant<value_ints = [-1]>() y = Reshape(o, all) }}""")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(*w[::-1]) for w in weights.items())
    for node in proto.graph.node:
        node.metadata_props.add(key=SCOPES, value="['', 'model.sem_seg_head.context', 'y']")
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def beside_float32(text: str, weights: dict[str, np.ndarray], precision: str) -> list[np.ndarray]:
    """Results in this precision and in float32."""
    return [run(converted(parsed(text, weights), p))[0] for p in (precision, "float32")]


def reshaped(*shape: int) -> str:
    return f"s = Constant<value_ints = [{', '.join(map(str, shape))}]>() r = Reshape(x, s)"


RANDOM = np.random.default_rng(0).normal(size=(3, 12, 12)).astype(np.float32)
BY_AXIS = RANDOM * np.float32([1, 1e-3, 1e3])[:, None, None]
MATRIX, BIAS = {"w": RANDOM[0]}, {"b": RANDOM[1, 0]}


@pytest.mark.parametrize(
    ("text", "weights", "is_whole"),
    [
        (f"{reshaped(1, 12, 24)} o = Conv(r, w, b)", {"w": RANDOM.T.copy()} | BIAS, True),
        (f"{reshaped(3, 8, 12)} o = MatMul(r, w)", {"w": BY_AXIS}, False),
        (f"{reshaped(24, 12)} o = Gemm(r, w, b)", MATRIX | BIAS, True),
        (f"{reshaped(24, 12)} o = Gemm<transB = 1>(r, w)", MATRIX, True),
        (f"{reshaped(24, 12)} o = Gemm<alpha = 0.5>(r, w)", MATRIX, False),
        (f"{reshaped(24, 12)} o = Gemm<beta = 0.0>(r, w, b)", MATRIX | BIAS, False),
        (f"{reshaped(12, 24)} o = Gemm<transA = 1>(r, w)", MATRIX, False),
    ],
)
def test_products_in_int8(text, weights, is_whole):
    y, expected = beside_float32(text, weights, "int8")
    np.testing.assert_allclose(y, expected, atol=0.02 * np.abs(expected).max())
    assert np.array_equal(y, expected) != is_whole


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        # Zeros divided by F.normalize's least norm, and multiplied
        ("z = Sub(x, x) n = ReduceL2(z) m = Max(n, w) o = Div(z, m)", {"w": np.float32(1e-12)}),
        ("z = Sub(x, x) o = Mul(z, w)", {"w": np.float32(1e9)}),
        # A whole number that float16 has not
        (
            "i = Cast<to = 7>(x) j = Add(i, k) f = Cast<to = 1>(j) o = Sub(f, w)",
            {"k": np.int64(64701), "w": np.float32(64700)},
        ),
    ],
)
def test_numbers_that_leave_float16(text, weights):
    y, expected = beside_float32(text, weights, "float16")
    np.testing.assert_allclose(y, expected, atol=3e-3)


def test_softmax_and_sums_over_pixels_stay_in_float32():
    """On a CPU onnxruntime computes float16 in float32, so that numbers show no difference."""
    model = parsed(
        "c = Conv(x, w) s = Constant<value_ints = [3, 96]>() m = Reshape(c, s) a = Softmax(m) "
        "t = Transpose(a) r = Relu(c) q = Reshape(r, s) f = MatMul(q, t) o = MatMul(f, v)",
        {"w": np.ones((3, 3, 1, 1), np.float32), "v": np.ones((3, 3), np.float32)},
    )
    nodes = [x for x in converted(model, "float16").graph if x.op_type != "Cast"]
    precise = [x.op_type for x in nodes if x.outputs[0].dtype == ir.DataType.FLOAT]
    assert precise == ["Reshape", "Softmax", "Transpose", "MatMul"], "of c, a, t and f"


def test_infinite_numbers_stay():
    y, expected = beside_float32("o = Max(x, w)", {"w": np.float32("inf")}, "float16")
    np.testing.assert_array_equal(y, expected)


@pytest.mark.slow
def test_float16(exported):
    half = Wrapped().eval()
    expected = half.layers.half()((IMAGE / 3).half()).float().numpy()
    y, z = run(converted(exported, "float16"))
    assert y.dtype == z.dtype == np.float32
    np.testing.assert_allclose(y, expected, atol=3e-3)
    np.testing.assert_allclose(z - y, 4097.25, atol=1e-3)
    weights = [i for i in exported.graph.initializers.values() if len(i.shape) > 1]
    assert weights and all(i.dtype == ir.DataType.FLOAT16 for i in weights)


@pytest.mark.slow
def test_int8(exported):
    conv, relu, up, flat, linear = Wrapped().layers
    conv.weight.data = torch.tensor(rounded_weights(conv.weight.numpy(), (1, 2, 3)))
    linear.weight.data = torch.tensor(rounded_weights(linear.weight.numpy(), (1,)))
    x = conv(torch.tensor(rounded((IMAGE / 3).numpy()), dtype=torch.float32))
    x = torch.tensor(rounded(flat(up(relu(x))).numpy()), dtype=torch.float32)
    y, z = run(converted(exported, "int8"))
    np.testing.assert_allclose(y, linear(x).numpy(), atol=5e-3)
    assert not np.allclose(y, Wrapped().layers(IMAGE / 3).numpy(), atol=1e-4)
    assert {"ConvInteger", "MatMulInteger"} <= {node.op_type for node in exported.graph}
    weights = [i for i in exported.graph.initializers.values() if np.prod(i.shape) > 8]
    assert weights and all(i.dtype == ir.DataType.UINT8 for i in weights)


def test_numbers_that_are_none_are_refused():
    row = {"labels equal": 0.5, "logits": 0.3, "confidences": 0.2}
    assert is_finite(row) and is_finite(row | {"scores": 0.1})
    assert not is_finite(row | {"logits": float("nan")})
    assert not is_finite(row | {"scores": float("inf")})


def test_unknown_precision():
    with pytest.raises(
        ValueError, match="precision is 'int4'; it is one of float32, float16, int8"
    ):
        export("run", output="model.onnx", precision="int4")
