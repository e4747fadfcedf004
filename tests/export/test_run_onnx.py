"""The runner's NumPy against Detectron2, its files, and what it refuses."""

import ast
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from detectron2.data import transforms as T
from detectron2.layers import paste_masks_in_image
from detectron2.modeling.meta_arch.panoptic_fpn import combine_semantic_and_instance_outputs
from detectron2.modeling.postprocessing import detector_postprocess
from detectron2.structures import Boxes, Instances
from PIL import Image

from ocr_panoptic.formats.pictures import read_picture
from ocr_panoptic.prediction.inputs import find_inputs
from ocr_panoptic.prediction.onnx import run_onnx
from ocr_panoptic.prediction.onnx.description import _resize
from ocr_panoptic.prediction.onnx.run_onnx import METADATA_KEY, merge, pasted, resized
from ocr_panoptic.visualization.inputs import PICTURE_SUFFIXES

generator = np.random.default_rng(0)


def test_imports_neither_torch_nor_detectron2():
    tree = ast.parse(Path(run_onnx.__file__).read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a file that is copied has no package"
            imported.add(node.module.partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"numpy", "onnxruntime", "PIL"}


@pytest.mark.parametrize(
    "augmentation",
    [
        T.ResizeShortestEdge(37, 1333),
        T.ResizeShortestEdge(53, 71, interp=Image.BICUBIC),
        T.ResizeShortestEdge(0, 8192, interp=Image.BICUBIC),
        T.Resize((33, 45), Image.BICUBIC),
    ],
    ids=["bilinear", "longest", "none", "fixed"],
)
@pytest.mark.parametrize("size", [(48, 64), (97, 31), (50, 201)])
def test_resized_as_in_tests_of_detectron2(augmentation, size):
    image = generator.integers(0, 256, (*size, 3), dtype=np.uint8)
    inputs = T.AugInput(image)
    rule = json.loads(json.dumps(_resize(T.AugmentationList([augmentation]))))
    augmentation(inputs)
    assert np.array_equal(resized(image, rule), inputs.image)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "1", "I;16"])
@pytest.mark.parametrize("orientation", [1, 6, 7])
def test_images_are_read_as_in_training(tmp_path, mode, orientation):
    image = Image.fromarray(generator.integers(0, 256, (5, 8, 3), dtype=np.uint8))
    if mode == "I;16":
        image = Image.fromarray(generator.integers(0, 65536, (5, 8), dtype=np.uint16))
    else:
        image = image.convert(mode)
    exif = image.getexif()
    exif[274] = orientation
    image.save(tmp_path / "image.png", exif=exif)
    expected = read_picture(tmp_path / "image.png", format="RGB")
    assert np.array_equal(run_onnx.read_image(tmp_path / "image.png"), expected)


def test_masks_are_pasted_as_by_detectron2():
    h, w = 41, 57
    corners = generator.uniform(-9, 60, (60, 2, 2)).astype(np.float32)
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    boxes = boxes.clip(0, [w, h, w, h]).astype(np.float32)
    boxes = boxes[(boxes[:, 2:] > boxes[:, :2]).all(axis=1)]
    masks = generator.random((len(boxes), 28, 28), dtype=np.float32)
    expected = paste_masks_in_image(torch.tensor(masks), Boxes(torch.tensor(boxes)), (h, w), 0.5)
    for mask, box, of_image in zip(masks, boxes, expected.numpy(), strict=True):
        whole = np.zeros((h, w), bool)
        found, region = pasted(mask, box, (h, w))
        whole[region] = found
        assert np.array_equal(whole, of_image)


def random_prediction(seed: int) -> dict:
    """Overlapping instances, some of them flat or empty, and labels of which some are rare."""
    random = np.random.default_rng(seed)
    count = seed % 8
    starts = random.uniform(0, 25, (count, 2))
    boxes = np.concatenate([starts, starts + random.uniform(1, 15, (count, 2))], axis=1)
    boxes[random.random(count) < 0.1, 2] = 0.0
    masks = random.random((count, 14, 14)) * random.choice([0.4, 1.0, 1.5], (count, 1, 1))
    return {
        "labels": random.choice([0, 1, 1, 1, 2, 4], (30, 40)).astype(np.int32),
        "boxes": boxes.clip(0, [40, 30, 40, 30]).astype(np.float32),
        "scores": -np.sort(-random.random(count).astype(np.float32)),
        "classes": random.integers(0, 3, count),
        "masks": masks.astype(np.float32),
    }


@pytest.mark.parametrize("stuff_area", [0, 100])
def test_merge_is_that_of_detectron2(stuff_area):
    with_instances = 0
    for seed in range(100):
        prediction = random_prediction(seed)
        ids, segments = merge(prediction, overlap=0.3, stuff_area=stuff_area, score=0.2)
        instances = Instances((30, 40))
        instances.pred_boxes = Boxes(torch.tensor(prediction["boxes"]).clone())
        instances.scores = torch.tensor(prediction["scores"])
        instances.pred_classes = torch.tensor(prediction["classes"])
        instances.pred_masks = torch.tensor(prediction["masks"])[:, None]
        labels = torch.tensor(prediction["labels"]).long()
        expected_ids, expected = combine_semantic_and_instance_outputs(
            detector_postprocess(instances, 30, 40), labels, 0.3, stuff_area, 0.2
        )
        assert np.array_equal(ids, expected_ids.numpy())
        keys = ("id", "isthing", "category_id")
        assert [[s[k] for k in keys] for s in segments] == [[s[k] for k in keys] for s in expected]
        with_instances += segments[:1] != [] and segments[0]["isthing"]
    assert with_instances > 50


def identity_model(opset: int = 18, ir_version: int = 8, **metadata: str) -> bytes:
    value = onnx.helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Identity", ["image"], ["labels"])
    result = onnx.helper.make_tensor_value_info("labels", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([node], "graph", [value], [result])
    opsets = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    onnx.helper.set_model_props(model, metadata)
    return model.SerializeToString()


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "model.onnx: there is no such model"),
        (b"text", "as an ONNX model: Protobuf parsing failed. Is it whole?"),
        (identity_model()[:-20], "as an ONNX model: Protobuf parsing failed. Is it whole?"),
        (b"", "as an ONNX model: No graph was found in the protobuf. Is it whole?"),
        (identity_model(opset=99), "it has Opset 99, newer than onnxruntime"),
        (identity_model(ir_version=99), "it has IR version 99, newer than onnxruntime"),
        (identity_model(), "model.onnx does not say what its classes and image sizes are"),
        (identity_model(**{METADATA_KEY: '{"format": 99}'}), "is of format 99, and this program"),
        (identity_model(**{METADATA_KEY: "{"}), "metadata under 'ocr_panoptic' are not those"),
        (identity_model(**{METADATA_KEY: "[]"}), "metadata under 'ocr_panoptic' are not those"),
        (identity_model(**{METADATA_KEY: '{"format": 1}'}), "not those that ocr-panoptic export"),
    ],
    ids=[
        *("absent", "text", "truncated", "empty", "opset", "IR"),
        *("another's", "newer", "no JSON", "list", "no classes"),
    ],
)
def test_models_that_cannot_be_run(tmp_path, capsys, content, message):
    if content is not None:
        (tmp_path / "model.onnx").write_bytes(content)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    arguments = [tmp_path / "model.onnx", "--input", tmp_path / "a.png", "--output", tmp_path / "o"]
    assert run_onnx.main([str(a) for a in arguments]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_an_image_that_the_model_does_not_run_on(tmp_path, capsys):
    """As one that is too large for the memory: here one of bytes, and a model that takes floats."""
    description = {METADATA_KEY: '{"format": 1, "classes": [], "resize": null}'}
    (tmp_path / "model.onnx").write_bytes(identity_model(**description))
    Image.new("RGB", (6, 4)).save(tmp_path / "a.png")
    arguments = [tmp_path / "model.onnx", "--input", tmp_path / "a.png", "--output", tmp_path / "o"]
    assert run_onnx.main([str(a) for a in arguments]) == 1
    said = capsys.readouterr()
    assert "a.png: onnxruntime cannot run the model on an image of 6x4 pixels: " in said.err
    assert "0 of 1 images predicted" in said.out
    assert json.loads((tmp_path / "o/labels.json").read_text())["images"] == []


def test_images_that_cannot_be_found(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty: no image in this folder"):
        run_onnx.find_images([str(tmp_path / "empty")])
    with pytest.raises(FileNotFoundError, match="none: no such file or folder"):
        run_onnx.find_images([str(tmp_path / "none")])


NAMES = ["a.jpg", "a.png", "a.jpg.bmp", "b/x y.jpg", "b/X y.PNG", "c/é.tif", "c/e", "d.e.webp"]


def test_names_and_suffixes_are_those_of_predict(tmp_path):
    """Of a folder, and of its files one by one; hidden files are left out, links followed once."""
    files = [*NAMES, "b/.hidden.jpg", ".cache/a.jpg"]
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/back").symlink_to(tmp_path)
    (tmp_path / "alias").symlink_to(tmp_path / "c")
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nothing")
    expected = find_inputs(str(tmp_path), tmp_path / "out", 0).items
    found = run_onnx.find_images([str(tmp_path)])
    known = [(item.name, item.file_name, item.source) for item in expected]
    assert [tuple(source) for source in found] == known
    assert {file_name for _, file_name, _ in known} == set(NAMES) - {"c/e"}
    one_by_one = run_onnx.find_images([str(item.source) for item in expected])
    assert one_by_one == found
    assert run_onnx.IMAGE_SUFFIXES == PICTURE_SUFFIXES
