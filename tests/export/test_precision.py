"""Networks in float16 and in int8 beside the same arithmetic in PyTorch and NumPy."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx_ir.passes.common import NameFixPass
from torch import nn

from ocr_panoptic.cli.export import export
from ocr_panoptic.prediction.onnx.parity import is_finite
from ocr_panoptic.prediction.onnx.precision import converted

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
