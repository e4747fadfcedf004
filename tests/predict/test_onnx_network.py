"""Which ONNX files and keys are refused; tests/workbench/exporting compares the results."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

import ocr_panoptic
from ocr_panoptic.config.files import load_config
from ocr_panoptic.errors import UserError
from ocr_panoptic.predict.onnx_network import TRAINING_KEY
from ocr_panoptic.predict.run_onnx import FORMAT, METADATA_KEY
from ocr_panoptic.predict.trained_model import trained_model

pytest.importorskip("onnxruntime")


def onnx_file(path: Path, **metadata: str) -> Path:
    """Write a file whose label is the red value, with the confidence 0.25."""
    image = onnx.helper.make_tensor_value_info("image", onnx.TensorProto.UINT8, ["H", "W", 3])
    outputs = [
        onnx.helper.make_tensor_value_info(name, kind, ["H", "W"])
        for name, kind in (("labels", onnx.TensorProto.INT32), ("confidences", 1))
    ]
    quarter = onnx.helper.make_tensor("quarter", 1, [1], [0.25])
    nodes = [
        onnx.helper.make_node("Constant", [], ["first"], value_int=0),
        onnx.helper.make_node("Gather", ["image", "first"], ["red"], axis=2),
        onnx.helper.make_node("Cast", ["red"], ["labels"], to=onnx.TensorProto.INT32),
        onnx.helper.make_node("Shape", ["red"], ["size"]),
        onnx.helper.make_node("ConstantOfShape", ["size"], ["confidences"], value=quarter),
    ]
    graph = onnx.helper.make_graph(nodes, "graph", [image], outputs)
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8
    )
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


@pytest.fixture(params=["RGB", "BGR"])
def file(tmp_path, request) -> Path:
    names = ["MODEL.SEM_SEG_HEAD.NUM_CLASSES", "2", "INPUT.MIN_SIZE_TEST", "128"]
    names += ["INPUT.FORMAT", request.param]
    settings = load_config("quick_schedules/semantic_ocr_R_18_scenes", names).dump()
    classes = {
        "evaluator_type": "sem_seg",
        "stuff_classes": ["sky", "sea"],
        "stuff_colors": [[0, 0, 9], [0, 9, 0]],
        "ignore_label": 255,
    }
    metadata = {
        METADATA_KEY: f'{{"format": {FORMAT}, "classes": [], "made": {{"precision": "int8"}}}}',
        TRAINING_KEY: yaml.safe_dump({"settings": settings, "classes": classes}),
    }
    return onnx_file(tmp_path / "model.onnx", **metadata)


def test_a_file_is_loaded_without_a_network(file, tmp_path, capsys):
    model = ocr_panoptic.load(file)
    assert "2 classes, on cpu in int8" in capsys.readouterr().err
    assert model.classes == ["sky", "sea"]
    assert not list(model.module.parameters())
    result = model.predict(np.full((5, 300, 3), [1, 0, 0], np.uint8))  # the file itself resizes
    assert result.labels.shape == (5, 300) and result.labels.all()
    assert (result.confidence == 0.25).all()

    def fail(image):
        raise ValueError("onnxruntime cannot run the model on an image of 6000x1 pixels")

    model.module._model = fail
    with pytest.raises(UserError, match="6000x1 pixels"):  # the other images get their results
        model.predict(np.zeros((1, 6000, 3), np.uint8))
    assert result.segments == [{"label": 1, "name": "sea", "area": 1500, "confidence": 0.25}]


def test_refused_files_and_keys(file, tmp_path):
    with pytest.raises(ValueError, match=r"TEST.FLIP cannot be changed: .*model.onnx has fixed"):
        trained_model(str(file), overrides={"TEST.FLIP": True})
    with pytest.raises(ValueError, match=r"MODEL.DEVICE cannot be changed"):
        trained_model(str(file), overrides={"MODEL.DEVICE": "cuda"})
    assert trained_model(str(file), overrides={"MODEL.DEVICE": "cpu"}).start.weights == str(file)
    with pytest.raises(ValueError, match=r"contains its own settings. Name it without .*--config"):
        trained_model(str(tmp_path), str(file))
    with pytest.raises(FileNotFoundError, match="none.onnx does not exist"):
        trained_model(str(tmp_path / "none.onnx"))
    old = onnx_file(tmp_path / "old.onnx")
    with pytest.raises(ValueError, match="old.onnx does not contain the settings of its training"):
        trained_model(str(old))
