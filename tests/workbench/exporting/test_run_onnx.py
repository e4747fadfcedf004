"""The runner's files and its refusals."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from ocr_panoptic.formats.pictures import image_suffixes, read_picture
from ocr_panoptic.predict import run_onnx
from ocr_panoptic.predict.run_onnx import METADATA_KEY
from ocr_panoptic.predict.sources import find_inputs

generator = np.random.default_rng(0)


def test_imports_neither_torch_nor_detectron2():
    source = Path(run_onnx.__file__).read_text()
    imported = set(re.findall(r"^\s*(?:import|from) (\w*)", source, re.MULTILINE))
    assert imported - set(sys.stdlib_module_names) == {"numpy", "onnxruntime", "PIL"}


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "1", "I;16"])
@pytest.mark.parametrize("orientation", [1, 6, 7])
def test_images_are_read_like_in_training(tmp_path, mode, orientation):
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


def identity_model(**metadata: str) -> bytes:
    value, *results = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
        for name in ("image", "labels", "confidences")
    )
    nodes = [onnx.helper.make_node("Identity", ["image"], [result.name]) for result in results]
    graph = onnx.helper.make_graph(nodes, "graph", [value], results)
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.helper.set_model_props(model, metadata)
    return model.SerializeToString()


def run(folder: Path) -> int:
    Image.new("RGB", (6, 4)).save(folder / "a.png")
    files = [folder / "model.onnx", "--input", folder / "a.png", "--output", folder / "o"]
    return run_onnx.main([*map(str, files)])


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "model.onnx cannot be read as an ONNX model"),
        (identity_model()[:-20], "model.onnx cannot be read as an ONNX model"),
        (identity_model(), "model.onnx has no description of its classes"),
        (identity_model(**{METADATA_KEY: '{"format": 99}'}), "model.onnx has format 99"),
    ],
)
def test_models_that_cannot_be_run(tmp_path, capsys, content, message):
    if content is not None:
        (tmp_path / "model.onnx").write_bytes(content)
    assert run(tmp_path) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_an_image_on_which_the_model_fails(tmp_path, capsys):
    """The image has bytes, but the model takes floats."""
    description = {METADATA_KEY: '{"format": 3, "classes": []}'}
    (tmp_path / "model.onnx").write_bytes(identity_model(**description))
    assert run(tmp_path) == 1
    said = capsys.readouterr()
    assert "a.png: onnxruntime cannot run the model on an image of 6x4 pixels: " in said.err
    assert "Predictions for 0 of 1 images" in said.out
    assert json.loads((tmp_path / "o/labels.json").read_text())["images"] == []


def test_images_that_cannot_be_found(tmp_path):
    for name, message in ("", "no images in this folder"), ("none", "no such file"):
        with pytest.raises(FileNotFoundError, match=f"{name}: {message}"):
            run_onnx.find_images([str(tmp_path / name)])


NAMES = ["a.jpg", "a.png", "a.jpg.bmp", "b/x y.jpg", "b/X y.PNG", "c/é.tif", "c/e", "d.e.webp"]


def test_names_and_suffixes_equal_predicts(tmp_path):
    """A folder and its single files give the same names; hidden files are left out."""
    files = [*NAMES, "b/.hidden.jpg", ".cache/a.jpg"]
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/back").symlink_to(tmp_path)
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nothing")
    expected = find_inputs(tmp_path, tmp_path / "out").items
    found = run_onnx.find_images([str(tmp_path)])
    known = [(item.name, item.file_name, item.source) for item in expected]
    assert [tuple(source) for source in found] == known
    assert {file_name for _, file_name, _ in known} == set(NAMES) - {"c/e"}
    one_by_one = run_onnx.find_images([str(item.source) for item in expected])
    assert one_by_one == found
    assert image_suffixes() >= {*run_onnx.IMAGE_SUFFIXES}
