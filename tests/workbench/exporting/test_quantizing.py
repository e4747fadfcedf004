"""Files in 8 bits: their numbers, their errors, and when they are refused."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from ocr_panoptic.workbench.exporting import int8_file
from ocr_panoptic.workbench.exporting.operators import TRANSLATIONS, confident_labels
from ocr_panoptic.workbench.exporting.quantizing import layer_errors, measure_grids, quantize


class Network(nn.Module):
    """All kinds of layers, and operators between layers; a loop's body uses the logits."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.second = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.third = nn.Conv2d(32, 64, 1)
        self.last = nn.Conv2d(64, 7, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        x = self.norm(self.first(image.permute(2, 0, 1)[None] / 255)).relu()
        x = self.second(x).clamp(0, 6) + x
        x = nn.functional.max_pool2d(x, 2)
        x = nn.functional.interpolate(self.third(x), scale_factor=2.0, mode="bilinear")
        logits = self.last(x)
        return logits, *confident_labels(logits, logits, image, torch.tensor([9, 11]), False)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    found = Network().eval()
    found.norm.running_var.fill_(4.0)
    return found


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, (8, 12, 3), dtype=np.uint8) for _ in range(2)]


@pytest.fixture(scope="module")
def file(network, images, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "float32.onnx"
    export(network, images[0], path, custom_translation_table=TRANSLATIONS)
    return path


def export(model: nn.Module, image: np.ndarray, path: Path, **options: object) -> None:
    options |= {"dynamo": True, "verbose": False, "opset_version": 18}
    inputs = (torch.from_numpy(image),)
    torch.onnx.export(model, inputs, input_names=["image"], **options).save(path)


def relative_error(found: np.ndarray, exact: np.ndarray) -> float:
    return np.abs(found - exact).max() / np.abs(exact).max()


def run(file: Path, image: np.ndarray) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(file).run(None, {"image": image})


def test_results_and_size(file, network, images, tmp_path):
    """The logits are off by a few steps of 1/255 and never equal, and the file is smaller."""
    quantize(file, tmp_path / "int8.onnx", measure_grids(file, images))
    onnx.checker.check_model(onnx.load(tmp_path / "int8.onnx"))
    logits, labels, _ = run(tmp_path / "int8.onnx", images[0])
    exact, expected = (x.detach().numpy() for x in network(torch.from_numpy(images[0]))[:2])
    assert 1e-4 < relative_error(logits, exact) < 0.03
    assert (labels == expected).mean() > 0.9
    kinds = [node.op_type for node in onnx.load(tmp_path / "int8.onnx").graph.node]
    assert "Relu" not in kinds and "Clip" not in kinds, "the limits of the grids replace them"
    stored = {i.name: i for i in onnx.load(tmp_path / "int8.onnx").graph.initializer}
    weights = [i.data_type for name, i in stored.items() if name.endswith("weight.8bit")]
    assert weights == [onnx.TensorProto.INT8] * 4
    scales = [[*i.dims] for name, i in stored.items() if name.endswith("weight.scale")]
    assert sorted(scales) == [[7], [32], [32], [64]], "one for each output channel"


def test_a_grid_covers_the_values_of_all_images(file, network, images):
    grids = measure_grids(file, images)
    x = torch.stack([torch.from_numpy(image) for image in images]).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        largest = network.norm(network.first(x)).relu().max().item()
    grid = next(g for g in grids.values() if abs(g.scale * 255 - largest) < 1e-5)
    assert grid.zero == 0
    pixels = next(g for g in grids.values() if abs(g.scale * 255 - x.max().item()) < 1e-6)
    assert pixels.zero == 0


def test_layers_that_are_kept(file, network, images, tmp_path):
    """The layer with the largest error is found; if all layers are kept, the file is exact."""
    grids = measure_grids(file, images)
    errors = layer_errors(file, grids, images)
    assert set(errors) == {"first", "second", "third", "last"}
    assert all(1e-4 < error < 0.05 for error in errors.values())
    quantize(file, tmp_path / "kept.onnx", grids, kept=errors)
    for found, expected in zip(run(tmp_path / "kept.onnx", images[1]), run(file, images[1])):
        assert np.array_equal(found, expected)
    coarse = {name: grid._replace(scale=grid.scale * 20) for name, grid in grids.items()}
    assert all(layer_errors(file, coarse, images)[name] > 5 * errors[name] for name in errors)


class Selected(nn.Module):
    """Linear layers with an activation, on the rows that begin with a bright pixel."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 16), nn.Linear(16, 4)

    def forward(self, image: Tensor) -> Tensor:
        rows = (image[:, 0, 0] > 99).nonzero()[:, 0]
        return self.second(self.first(image[rows].flatten(0, 1) / 255 - 0.5).relu())


def test_activations_before_kept_layers_and_tensors_that_are_always_empty(tmp_path, images):
    torch.manual_seed(0)
    path, rounded = tmp_path / "exact.onnx", tmp_path / "int8.onnx"
    export(Selected().eval(), images[0], path)
    (exact,) = run(path, images[0])
    quantize(path, rounded, measure_grids(path, images), kept=["second"])
    assert 1e-5 < relative_error(run(rounded, images[0])[0], exact) < 0.02
    dark = [np.zeros_like(images[0])]
    grids = measure_grids(path, dark)
    assert not grids
    quantize(path, rounded, grids)
    assert np.array_equal(run(rounded, images[0])[0], exact)


class Biased(nn.Module):
    """A convolution with small weights and a large bias, before another."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 2, 3)
        self.first.weight.data.fill_(1e-9)
        self.first.bias.data.fill_(100.0)

    def forward(self, image: Tensor) -> Tensor:
        return self.second(self.first(image[None] / 255).relu())


def test_a_large_bias_beside_small_weights(tmp_path, images):
    """In 32 bits it would be 100 / (1e-9 / 127 / 255), far above 2^31."""
    torch.manual_seed(0)
    path, rounded = tmp_path / "exact.onnx", tmp_path / "int8.onnx"
    export(Biased().eval(), images[0], path)
    (exact,) = run(path, images[0])
    quantize(path, rounded, measure_grids(path, images))
    assert relative_error(run(rounded, images[0])[0], exact) < 0.02


def test_a_slow_file_is_refused(tmp_path):
    int8_file.check_speed(tmp_path / "a.onnx", 0.2, 0.1)
    with pytest.raises(ValueError, match="int8 takes 0.30 s .* float32 0.20 s.*VNNI.*float32, or"):
        int8_file.check_speed(tmp_path / "a.onnx", 0.2, 0.3)


@pytest.mark.parametrize(
    ("scores", "fault"),
    [
        ({"PQ": 49.71, "PQ_th": 0.0, "mIoU": 41.0}, ""),
        ({"PQ": 49.69, "PQ_th": 0.0, "mIoU": 41.0}, "PQ is 49.69 instead of 50.00"),
        ({"PQ": 50.0, "PQ_th": 0.0, "mIoU": float("nan")}, "mIoU is nan instead of 40.00"),
    ],
)
def test_the_loss_that_is_allowed(monkeypatch, scores, fault):
    """It is 0.3 points of each metric that the model has: here, PQ of things is undefined."""
    found = {"model": {"PQ": 50.0, "PQ_th": float("nan"), "mIoU": 40.0}, "file": scores}
    monkeypatch.setattr(int8_file, "evaluate", lambda predict, annotated: found[predict])
    judge = int8_file._Scores("model", int8_file.Annotated("city_val", [{}]))
    rows, faults = judge("file")
    assert rows[0] == ["PQ, 1 images of city_val", 50.0, scores["PQ"]] and len(rows) == 2
    assert [text.partition(" (")[0] for text in faults] == [fault] * bool(fault)


def test_layers_stay_in_float32_until_the_results_hold(file, images, tmp_path, monkeypatch):
    """The file of this test is wrong unless at least 2 of the 4 layers stay in float32."""
    monkeypatch.setattr(int8_file, "check_speed", lambda *given: None)
    monkeypatch.setattr(int8_file, "_times", lambda *given: [0.2, 0.1])
    labels = torch.zeros(8, 12, dtype=torch.int64)

    def outputs(path: Path) -> int8_file.Predict:
        stored = [i.name for i in onnx.load(path).graph.initializer]
        layers = sum(name.endswith("weight.8bit") for name in stored)
        return lambda image: {"labels": labels + (layers > 2)}

    words = images, lambda image: {"labels": labels}, None, outputs
    rows, kept = int8_file.write_int8(file, tmp_path / "a.onnx", *words)
    assert rows[0] == ["equal labels, 2 images", 1.0, 1.0] and len(kept) == 2
    assert (tmp_path / "a.onnx").stat().st_size < file.stat().st_size
    nothing = int8_file.Annotated("city_val", [])  # no metric is defined, so labels decide
    monkeypatch.setattr(int8_file, "evaluate", lambda *given: {"mIoU": float("nan")})
    again, _ = int8_file.write_int8(file, tmp_path / "a.onnx", *words[:2], nothing, outputs)
    assert again[0] == rows[0]
    words = *words[:-1], lambda path: lambda image: {"labels": labels + 1}
    with pytest.raises(ValueError, match="b.onnx was not written: with 2 of 4 layers.*0.0 % of"):
        int8_file.write_int8(file, tmp_path / "b.onnx", *words)
    assert not (tmp_path / "b.onnx").exists()
