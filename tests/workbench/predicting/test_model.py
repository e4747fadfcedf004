"""``ocr_panoptic.load`` and its predictions equal the files of ``ocr-panoptic predict``."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from detectron2.config import CfgNode
from panopticapi.utils import rgb2id
from PIL import ExifTags, Image
from pycocotools import mask as run_lengths

import ocr_panoptic
from support.tiny_runs import TILES, pixels

pytestmark = pytest.mark.slow


def loaded(command: list[str], **keys: object) -> ocr_panoptic.Model:
    """Return the model that a command line of ``ocr-panoptic predict`` names."""
    values = map(CfgNode._decode_cfg_value, command[5::2])
    own = dict(zip(command[4::2], values, strict=True))
    return ocr_panoptic.load(command[1], command[3], **own, **keys)


@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_the_files_of_the_command(model_of, call, images, tmp_path, kind):
    """Files and JSON entries are equal byte by byte, and hold the arrays' values."""
    command, out = model_of(kind), tmp_path / "out"
    assert call(command, images, "--overlays") == 0
    model = loaded(command)
    results = model.predict(images)
    assert iter(results) is results  # an iterator, which predicts one after the other
    content = json.loads((out / "panoptic.json").read_text()) if kind == "panoptic" else None
    labels = None if content else json.loads((out / "labels.json").read_text())
    for number, result in enumerate(results, 1):
        files = result.save(tmp_path / "saved")
        assert json.loads(files["coco"].read_text()) == json.loads(json.dumps(result.to_coco()))
        for path in files.values():
            assert path.read_bytes() == (out / path.relative_to(tmp_path / "saved")).read_bytes()
        assert np.array_equal(pixels(files["labels"]), result.labels)
        assert np.array_equal(pixels(files["confidence"]), (255 * result.confidence).round())
        assert (result.labels.dtype, result.confidence.dtype) == (np.int64, np.float32)
        assert np.array_equal(pixels(images / f"{result.name}.jpg"), result.image)
        if content:
            assert np.array_equal(rgb2id(pixels(files["panoptic"])), result.ids)
            assert result.ids.dtype == np.int32
            counted = dict.fromkeys(result.things, 0)
            for segment in result.segments:
                if segment["isthing"]:
                    counted[segment["name"]] += 1
            assert result.counts == counted
            coco = result.to_coco(number)
            assert coco["images"] == [content["images"][number - 1]]
            assert coco["categories"] == content["categories"]
            (annotation,) = coco["annotations"]
            for segment in annotation["segments_info"]:
                mask = run_lengths.decode(segment.pop("segmentation"))
                assert np.array_equal(mask, result.ids == segment["id"])
            assert annotation == content["annotations"][number - 1]
            assert len(result.instances) == len(coco["instances"])
            assert all(found["image_id"] == number for found in coco["instances"])
        else:
            assert result.ids is None and result.instances is None
            assert result.segments == labels["images"][number - 1]["segments"]
    assert number == 4


def test_predictions_in_bfloat16(model_of, call, images, tmp_path, monkeypatch):
    """Only a key asks for bfloat16: predictions are what evaluations measure."""
    command, path = model_of("semantic"), sorted(images.iterdir())[0]
    monkeypatch.setattr("ocr_panoptic.predict.run_info.cpu_computes_bfloat16", lambda: True)
    exact = loaded(command).predict(path)
    auto = {"TEST.PRECISION": "auto"}
    assert call([*command, "TEST.PRECISION", "auto"], path) == 0
    model = loaded(command, **auto)
    assert str(model).endswith("in bfloat16")
    found = model.predict(path)
    written = pixels(tmp_path / f"out/confidence/{path.stem}.png")
    assert np.array_equal(written, (255 * found.confidence).round())
    assert not np.array_equal(found.confidence, exact.confidence)
    assert np.abs(found.confidence - exact.confidence).max() < 0.05
    for keys in {"TEST.PRECISION": "float32"}, {**auto, "TEST.OPTIMIZED": False}:
        result = loaded(command, **keys).predict(path)
        assert np.allclose(result.confidence, exact.confidence, atol=1e-5)


def test_one_image_from_any_source(model_of, images, tmp_path):
    """EXIF data count for a file and for Pillow's image."""
    model, path = loaded(model_of("panoptic")), sorted(images.iterdir())[0]
    expected = model.predict(path)
    # A PNG is turned exactly; its first row becomes its last column.
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    turned = tmp_path / "turned.png"
    Image.open(path).transpose(Image.Transpose.ROTATE_90).save(turned, exif=exif)
    array = pixels(path)
    tensor = torch.as_tensor(array.transpose(2, 0, 1).copy())
    sources = str(path), array, tensor, Image.open(path), turned, Image.open(turned)
    opened = io.BytesIO(path.read_bytes()), io.FileIO(turned)
    found = [*map(model.predict, (*sources, *opened)), *model.predict([opened[0], path, array])]
    assert len(found) == 11
    for result in found:
        assert np.array_equal(result.labels, expected.labels)
        assert np.array_equal(result.ids, expected.ids)
        assert np.array_equal(result.confidence, expected.confidence)
    assert [result.name for result in found[-3:]] == ["000000", path.stem, "000002"]
    (tmp_path / "list.txt").write_text(f"{path}\n{turned}\n")
    names = [Path(result.name).name for result in model.predict(tmp_path / "list.txt")]
    assert names == [path.stem, "turned"]
    grey = array[:, :, 0]
    both = [model.predict(values).confidence for values in (grey, np.stack([grey] * 3, axis=2))]
    assert np.array_equal(*both)


def test_segments_have_names_and_scores(model_of, images, monkeypatch):
    model = loaded(model_of("panoptic"))
    assert model.classes[0] == "things" and len(model.things) == 4
    result = model.predict(sorted(images.iterdir())[0])
    drawn = result.draw()
    assert drawn.size == (64, 64) and drawn.mode == "RGB"
    monkeypatch.setattr("ocr_panoptic.predict.result.NOTEBOOK", 32)
    assert Image.open(io.BytesIO(result._repr_png_())).size == (32, 32)
    known = {c["id"]: c for c in result.to_coco()["categories"]}
    assert {segment["isthing"] for segment in result.segments} == {True, False}
    for segment in result.segments:
        category, mask = known[segment["category_id"]], result.ids == segment["id"]
        assert segment["name"] == category["name"] and segment["area"] == mask.sum()
        assert segment["isthing"] == bool(category["isthing"]) == ("score" in segment)
        if segment["isthing"]:
            assert np.allclose(result.confidence[mask], segment["score"])
            assert segment["name"] in model.things
        else:
            assert (result.labels[mask] == model.classes.index(segment["name"])).all()
    assert repr(result).startswith(f"<Result {result.name}: 64x64, {len(result.segments)} segments")


@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_one_window_equals_the_whole_image(model_of, images, kind):
    whole = loaded(model_of(kind, "INPUT.MIN_SIZE_TEST", 0))
    window = "TEST.SLIDING_WINDOW.SIZE", [128, 128], "TEST.SLIDING_WINDOW.STRIDE", [64, 64]
    model = loaded(model_of(kind, *window, "INPUT.MIN_SIZE_TEST", 0))
    for path in sorted(images.iterdir()):
        expected, found = whole.predict(path), model.predict(path)
        for name in ("labels", "ids", "image"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name
        # A window's scores are enlarged at once, a whole image's class by class.
        np.testing.assert_allclose(found.confidence, expected.confidence, rtol=0, atol=1e-6)
        assert kind == "semantic" or found.to_coco() == expected.to_coco()
        assert len(found.segments) > 1


def test_windows_of_a_semantic_model(model_of, images, monkeypatch):
    """Labels equal the network's own, which sums the whole image and is not called."""
    command = model_of("semantic", *TILES, "TEST.FLIP", True)
    model, path = loaded(command), sorted(images.iterdir())[0]
    found = model.predict(pixels(path))
    (expected,) = model._model([{"image": torch.as_tensor(pixels(path).transpose(2, 0, 1).copy())}])
    assert np.array_equal(found.labels, expected["labels"]) and len(np.unique(found.labels)) > 1
    assert np.array_equal(found.confidence, expected["confidence"])
    monkeypatch.setattr("ocr_panoptic.modeling.inference.joined_rows", None)
    assert np.array_equal(model.predict(path).labels, found.labels)
    whole = loaded(model_of("semantic", "INPUT.MIN_SIZE_TEST", 0)).predict(path)
    assert not np.array_equal(whole.confidence, found.confidence)


def test_tiles_of_a_panoptic_model(model_of, images, tmp_path, caplog):
    """Overlapping tiles give consistent files, with the tiles' instances."""
    model, path = loaded(model_of("panoptic", *TILES)), sorted(images.iterdir())[0]
    result = model.predict(path)
    assert result.instances is None and np.array_equal(result.image, pixels(path))
    assert (result.labels.dtype, result.ids.dtype) == (np.int64, np.int32)
    files = result.save(tmp_path / "saved")
    coco = json.loads(files["coco"].read_text())
    assert np.array_equal(rgb2id(pixels(files["panoptic"])), result.ids)
    for segment in coco["annotations"][0]["segments_info"]:
        mask = result.ids == segment["id"]
        assert mask.sum() == segment["area"]
        if "score" in segment:
            assert np.unique(result.confidence[mask]) == pytest.approx(segment["score"])
    assert len(result.segments) > 3 and len(coco["instances"]) > 3
    for found in coco["instances"]:
        assert found["segmentation"]["size"] == [64, 64] and found["image_id"] == 1
    assert "of the things completely, so they may be cut. Increase TEST" in caplog.text


def test_unreadable_images_are_named_after_the_others(model_of, images, tmp_path):
    model = loaded(model_of("semantic"))
    shutil.copytree(images, tmp_path / "images")
    broken, *good = sorted((tmp_path / "images").iterdir())
    broken.write_bytes(broken.read_bytes()[:900])
    fault = f"{broken.name}: the image is broken"
    for source in (tmp_path / "images", [broken, *good, Image.open(good[0])]):
        found = []
        with pytest.raises(ValueError, match=rf"1 of . images:\n.*{fault}"):
            found.extend(model.predict(source))
        assert len(found) >= len(good)
    with pytest.raises(ValueError, match=fault):
        model.predict(broken)
    with pytest.raises(FileNotFoundError, match="nowhere.jpg: no such file or folder"):
        model.predict("nowhere.jpg")


def test_arrays_that_are_not_images(model_of):
    model = loaded(model_of("panoptic"))
    tensor = torch.zeros(4, 5, 3, dtype=torch.uint8)
    for array, message in (
        (tensor, r"type torch.uint8 and shape \[4, 5, 3\]; expected a"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), r"type torch.bfloat16 and shape \[2, 3\]"),
        (np.zeros((3, 4, 5), np.uint8), r"type uint8 and shape \[3, 4, 5\]"),
        (np.zeros((0, 4, 3), np.uint8), r"type uint8 and shape \[0, 4, 3\]"),
        (np.zeros((4, 5, 3)), "type float64 .* a uint8 array"),
        (np.zeros((1, 5000, 3), np.uint8), "the image of 5000x1 pixels .* too thin"),
    ):
        with pytest.raises(ValueError, match=f"image.* {message}"):
            model.predict(array)
        with pytest.raises(ValueError, match=f"000000.* {message}"):
            next(model.predict([array]))
    with pytest.raises(ValueError, match="000000 has type int .*expected a uint8 array"):
        next(model.predict([3]))
    refused = {None: "was given None, a NoneType", 5: "given 5", "": "is empty", b"x": "a bytes"}
    refused |= {memoryview(b"y"): "a memoryview", io.StringIO("z"): 'Open it with mode "rb"'}
    refused |= {io.BytesIO(b"no image"): "BytesIO.*broken or truncated"}
    for source, said in [*refused.items(), ({"image": 1}, "a dict")]:
        with pytest.raises(ValueError, match=said):
            model.predict(source)


def test_a_run_folder(trained, tiny_data, tmp_path, capsys):
    """Config and last checkpoint come from the folder; random generators are not changed."""
    trained()
    moved = tmp_path / "moved"
    shutil.move(tmp_path / "run", moved)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    capsys.readouterr()  # discard the training's output
    model = ocr_panoptic.load(moved)
    assert torch.equal(torch.get_rng_state(), before) and torch.initial_seed() == 7
    assert capsys.readouterr().err.splitlines() == [
        f"Loaded {moved}/model_final.pth: Panoptic-FPN, OCRSemSegFPNHead, 4 thing and 5 stuff "
        "classes, on cpu in float32"
    ]
    saved = torch.load(moved / "model_final.pth", weights_only=False)["model"]
    own = ocr_panoptic.load(moved, moved / "model_final.pth", **{"TEST.OPTIMIZED": False})
    weights = own._model.network.state_dict()
    assert all(torch.equal(weights[name], torch.as_tensor(saved[name])) for name in weights)
    assert str(moved) == model.config.OUTPUT_DIR
    weights = (moved / "model_final.pth").rename(moved.with_name("weights.pth"))
    with pytest.raises(FileNotFoundError, match="moved has no complete checkpoint"):
        ocr_panoptic.load(moved)
    (moved / "config.yaml").unlink()
    with pytest.raises(FileNotFoundError, match="moved contains no config"):
        ocr_panoptic.load(moved, weights)
