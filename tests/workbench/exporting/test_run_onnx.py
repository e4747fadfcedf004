"""The runner's files and its refusals."""

import ast
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from ocr_panoptic.formats.image_sources import find_inputs
from ocr_panoptic.formats.pictures import image_suffixes, read_picture
from ocr_panoptic.workbench.exporting import run_onnx
from ocr_panoptic.workbench.exporting.run_onnx import METADATA_KEY

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


DESCRIPTION = {METADATA_KEY: '{"format": 3, "classes": []}'}


def identity_model(
    opset: int = 18, ir_version: int = 8, outputs=("labels", "confidences"), **metadata: str
) -> bytes:
    value, *results = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
        for name in ("image", *outputs)
    )
    nodes = [onnx.helper.make_node("Identity", ["image"], [name]) for name in outputs]
    graph = onnx.helper.make_graph(nodes, "graph", [value], results)
    opsets = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    onnx.helper.set_model_props(model, metadata)
    return model.SerializeToString()


def run(folder: Path) -> int:
    files = ["model.onnx", "--input", "a.png", "--output", "o"]
    return run_onnx.main([a if a[0] == "-" else str(folder / a) for a in files])


NOT_THOSE = "metadata under 'ocr_panoptic' were not written by ocr-panoptic export"


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "model.onnx: model not found"),
        (b"text", "as an ONNX model: Protobuf parsing failed."),
        (identity_model()[:-20], "as an ONNX model: Protobuf parsing failed."),
        (b"", "as an ONNX model: No graph was found in the protobuf."),
        (identity_model(opset=99), "it has Opset 99, newer than onnxruntime"),
        (identity_model(ir_version=99), "it has IR version 99, newer than onnxruntime"),
        (identity_model(), "model.onnx has no description of its classes"),
        (identity_model(**{METADATA_KEY: '{"format": 99}'}), "has format 99, but this program"),
        *(
            (identity_model(**{METADATA_KEY: text}), NOT_THOSE)
            for text in (
                *("{", "[]", '{"format": 3}', '{"format": 3, "classes": 3}'),
                '{"format": 3, "classes": [{"name": "a"}]}',
            )
        ),
        (
            identity_model(outputs=["labels"], **DESCRIPTION),
            "has no confidences among its inputs and outputs (image, labels): it was changed",
        ),
        (
            identity_model(outputs=["labels", "confidences", "ids"], **DESCRIPTION),
            "has no segment_isthing, segment_classes, segment_scores, segment_boxes among",
        ),
    ],
)
def test_models_that_cannot_be_run(tmp_path, capsys, content, message):
    if content is not None:
        (tmp_path / "model.onnx").write_bytes(content)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    assert run(tmp_path) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_an_image_on_which_the_model_fails(tmp_path, capsys):
    """The message names the image; here the image has bytes, but the model takes floats."""
    (tmp_path / "model.onnx").write_bytes(identity_model(**DESCRIPTION))
    Image.new("RGB", (6, 4)).save(tmp_path / "a.png")
    assert run(tmp_path) == 1
    said = capsys.readouterr()
    assert "a.png: onnxruntime cannot run the model on an image of 6x4 pixels: " in said.err
    assert "0 of 1 images predicted" in said.out
    assert json.loads((tmp_path / "o/labels.json").read_text())["images"] == []


class Flat:
    """A model that predicts a single class."""

    classes, is_panoptic = [{"name": "all"}], False

    def __init__(self, *_: object, **__: object):
        pass

    def __call__(self, image: np.ndarray) -> dict[str, np.ndarray]:
        size = image.shape[:2]
        return {"labels": np.zeros(size, np.int64), "confidences": np.ones(size, np.float32)}


def test_long_names(tmp_path, capsys, monkeypatch):
    """A name of 255 bytes works, but two equal names keep their suffixes and become too long."""
    monkeypatch.setattr(run_onnx, "Model", Flat)
    for name in ("é" * 125 + "x.png", "b" * 251 + ".jpg", "b" * 251 + ".png", "a.png"):
        (tmp_path / "in").mkdir(exist_ok=True)
        Image.new("RGB", (6, 4)).save(tmp_path / "in" / name)
    assert run_onnx.main(["m.onnx", "--input", f"{tmp_path}/in", "--output", f"{tmp_path}/o"]) == 1
    said = capsys.readouterr()
    assert said.err.count("too long") == 2 and "2 of 4" in said.out
    written = {path.name for path in (tmp_path / "o/labels").iterdir()}
    assert written == {"é" * 125 + "x.png", "a.png"}


@pytest.mark.parametrize("name, message", [("", "no image in this folder"), ("none", "no such f")])
def test_images_that_cannot_be_found(tmp_path, name, message):
    with pytest.raises(FileNotFoundError, match=f"{name}: {message}"):
        run_onnx.find_images([str(tmp_path / name)])


NAMES = ["a.jpg", "a.png", "a.jpg.bmp", "b/x y.jpg", "b/X y.PNG", "c/é.tif", "c/e", "d.e.webp"]


def test_names_and_suffixes_equal_predicts(tmp_path):
    """
    A folder and its single files give the same names.

    Hidden files are left out, and links are followed once.
    """
    files = [*NAMES, "b/.hidden.jpg", ".cache/a.jpg"]
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/back").symlink_to(tmp_path)
    (tmp_path / "alias").symlink_to(tmp_path / "c")
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nothing")
    expected = find_inputs(tmp_path, tmp_path / "out").items
    found = run_onnx.find_images([str(tmp_path)])
    known = [(item.name, item.file_name, item.source) for item in expected]
    assert [tuple(source) for source in found] == known
    assert {file_name for _, file_name, _ in known} == set(NAMES) - {"c/e"}
    one_by_one = run_onnx.find_images([str(item.source) for item in expected])
    assert one_by_one == found
    assert image_suffixes() >= {*run_onnx.IMAGE_SUFFIXES}
