import base64
import io
import json
import logging
import math

import numpy as np
import pytest
from PIL import ExifTags, Image
from pycocotools import mask as rle

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.workbench.importing.brush import encode_brush
from ocr_panoptic.workbench.importing.label_studio import image_path, read_label_studio
from ocr_panoptic.workbench.importing.shapes import ellipse

H, W = 20, 40
UPLOAD = "/data/upload/7/a1b2c3d4-a.png"


@pytest.fixture
def folder(tmp_path):
    """The image ``images/a.png``; the JSON is yet to be written."""
    (tmp_path / "images").mkdir()
    Image.new("RGB", (W, H)).save(tmp_path / "images" / "a.png")
    return tmp_path


def result(value: dict, kind: str = "polygonlabels", label: str = "cat", **others) -> dict:
    size = {"original_width": W, "original_height": H, "image_rotation": 0}
    known = {"from_name": "label", "to_name": "image", "type": kind, **size}
    return {**known, "value": {**value, kind: [label]}, **others}


def square(x: float, **others) -> dict:
    """Return a region of 4 x 2 pixels, x percent from the left."""
    return result({"points": [[x, 0], [x + 10, 0], [x + 10, 10], [x, 10]]}, **others)


def write(folder, *tasks: dict) -> None:
    (folder / "export.json").write_text(json.dumps(tasks))


def task(*annotations: dict, image: str = UPLOAD, **others) -> dict:
    return {"id": 5, "data": {"image": image}, "annotations": list(annotations), **others}


def read(folder, *results: dict) -> list[tuple[str, np.ndarray]]:
    write(folder, task({"id": 1, "result": list(results)}))
    (image,) = read_label_studio(folder / "export.json", folder / "images")
    assert (image.name, image.height, image.width) == ("a.png", H, W)
    return [(segment.label, segment.pixels()) for segment in image.segments]


def test_reads_percentages(folder):
    box = {"x": 25, "y": 50, "width": 10, "height": 20}
    (_, polygon), (_, upright), (_, turned), (_, oval) = read(
        folder,
        result({"points": [[10, 20], [60, 20], [60, 70], [10, 70]], "closed": True}),
        result({**box, "rotation": 0}, "rectanglelabels"),
        result({**box, "rotation": 90}, "rectanglelabels"),
        result({"x": 50, "y": 50, "radiusX": 20, "radiusY": 10, "rotation": 30}, "ellipselabels"),
    )
    assert polygon[4:14, 4:24].all() and polygon.sum() == 200
    assert upright[10:14, 10:14].all() and upright.sum() == 16
    # About its upper left corner, (10, 10), clockwise.
    assert turned[10:14, 6:10].all() and turned.sum() == 16
    assert np.array_equal(oval, rle.decode(ellipse((20, 10), (8, 2), H, W, 30)))


def test_reads_brush_and_bitmask(folder):
    pixels = np.random.default_rng(0).random((H, W)) < 0.5
    alpha = np.zeros((H, W, 4), np.uint8)
    alpha[..., 3] = 255 * pixels
    with io.BytesIO() as file:
        Image.fromarray(alpha).save(file, format="PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    code = {"format": "rle", "rle": encode_brush(pixels)}
    found = read(
        folder,
        result(code, "brushlabels", "a"),
        result({"imageDataURL": url}, "bitmasklabels", "b"),
        result(code, "brushlabels", "c", image_rotation=90),  # of the view alone
    )
    assert [label for label, _ in found] == ["a", "b", "c"]
    assert all(np.array_equal(mask, pixels) for _, mask in found)


def test_reads_an_image_as_its_exif_data_turn_it(folder):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # the file is of H x W, shown as W x H
    Image.new("RGB", (H, W)).save(folder / "images" / "a.png", exif=exif)
    ((_, pixels),) = read(folder, square(0))
    assert pixels[:2, :4].all() and pixels.sum() == 8


def test_joins_what_several_controls_say_of_a_region(folder):
    """<Brush> with <Labels>, and questions about single regions and the image."""
    code = {"format": "rle", "rle": encode_brush(np.ones((H, W), bool))}
    brush, label = result(code, "brush", id="r1"), result(code, "labels", "cat", id="r1")
    del brush["value"]["brush"]
    choice = {"id": "r1", "type": "choices", "value": {**code, "choices": ["blurred"]}}
    note = {"id": "n", "type": "textarea", "value": {"text": ["night"]}}
    relation = {"type": "relation", "from_id": "r1", "to_id": "r2", "direction": "right"}
    ((label, pixels),) = read(folder, brush, label, choice, note, relation)
    assert label == "cat" and pixels.all()


def labels_of(folder) -> list[str]:
    (image,) = read_label_studio(folder / "export.json", folder / "images")
    return [segment.label for segment in image.segments]


def test_takes_the_ground_truth_or_the_last_annotation(folder, caplog):
    def annotation(number: int, updated: str, **others) -> dict:
        dates = {"created_at": "2024-01-01T00:00:00Z", "updated_at": updated}
        return {"id": number, **dates, "result": [square(0, label=f"of {number}")], **others}

    first, second = annotation(1, "2024-05-01T00:00:00Z"), annotation(2, "2024-02-01T00:00:00Z")
    write(folder, task(first, second))
    with caplog.at_level(logging.WARNING):
        assert labels_of(folder) == ["of 1"]
    assert "1 tasks have several annotations" in caplog.text
    cancelled = annotation(3, "2024-09-01T00:00:00Z", was_cancelled=True)
    write(folder, task(first, {**second, "ground_truth": True}, cancelled))
    assert labels_of(folder) == ["of 2"]
    same = annotation(10, "2024-05-01T00:00:00Z")
    write(folder, task(same, first))
    assert labels_of(folder) == ["of 10"]


def test_leaves_out_tasks_that_nobody_has_annotated(folder, caplog):
    empty = task({"id": 1, "result": []})
    cancelled = task({"id": 2, "result": [square(0)], "was_cancelled": True}, image="none.png")
    predicted = task(image="none.png", predictions=[{"id": 3, "result": [square(0)]}])
    write(folder, empty, cancelled, predicted)
    with caplog.at_level(logging.WARNING):
        assert labels_of(folder) == []  # of the first, in which there is nothing to see
    assert "2 of 3 tasks have no annotation, or cancelled ones only" in caplog.text
    write(folder, cancelled, predicted)
    with pytest.raises(ValueError, match="none of its 2 tasks has an annotation"):
        labels_of(folder)


@pytest.mark.parametrize(
    "reference, path",
    [
        ("/data/local-files/?d=city/a%20b.jpg", "city/a b.jpg"),
        ("http://localhost:8080/data/local-files/?d=city/a.jpg", "city/a.jpg"),
        ("/data/upload/7/a1b2c3d4-a.png", "7/a1b2c3d4-a.png"),
        ("https://example.org/x/a.JPEG?token=1", "x/a.JPEG"),
        ("s3://bucket/x/a.png", "x/a.png"),
        ("a.png", "a.png"),
        ("a text.", None),
        ("https://example.org/page.html", None),
        ("http://[broken/a.png", None),
    ],
)
def test_finds_the_path_in_a_reference(reference, path):
    assert image_path(reference) == path


@pytest.mark.parametrize(
    "reference, name",
    [
        (UPLOAD, "a.png"),  # as it was called before it was uploaded
        (UPLOAD, "a1b2c3d4-a.png"),
        (UPLOAD, "7/a1b2c3d4-a.png"),
        ("http://localhost:8080" + UPLOAD, "a.png"),
        ("/data/local-files/?d=x/y/a.png", "x/y/a.png"),
        ("/data/local-files/?d=x/y/a.png", "y/a.png"),
        ("s3://bucket/x/a.png", "a.png"),
    ],
)
def test_finds_the_image(folder, reference, name):
    (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / "images" / "a.png").rename(folder / "images" / name)
    write(folder, task({"id": 1, "result": []}, image=reference))
    (image,) = read_label_studio(folder / "export.json", folder / "images")
    assert image.name == name


@pytest.mark.parametrize(
    "data, reason",
    [
        ({"image": "/data/local-files/?d=../a.png"}, "must lie inside the given folder"),
        ({"image": "/data/local-files/?d=x/%2e%2e/a.png"}, "must lie inside the given folder"),
        ({"image": "a%0a.png"}, "control characters"),
        ({"image": "b.png"}, "b.png not found"),
        ({"left": "a.png", "right": "a.png"}, "expected data with one image"),
        ({"images": ["a.png"]}, "expected data with one image, found .'images'."),
    ],
)
def test_names_images_that_do_not_fit(folder, data, reason):
    write(folder, {**task({"id": 1, "result": []}), "data": data})
    with pytest.raises(DataFaults, match=f"export.json: task 5: .*{reason}"):
        labels_of(folder)


@pytest.mark.parametrize(
    "wrong, reason",
    [
        (result({"x": 1, "y": 1, "width": 1}, "keypointlabels"), "is a keypointlabels.*no area"),
        (result({"vertices": []}, "vectorlabels"), "is a vectorlabels, and has no area"),
        (result({"points": []}, "polygon"), "must have one label, found none"),
        (result({"points": []}, label="a", item_index=1), "second or a later image"),
        (result({"points": [], "labels": ["dog"]}), r"one label, found \['cat', 'dog'\]"),
        (result({"points": [[0, 0], [1, 1], [1, 0]], "closed": False}), "not closed"),
        (result({}), "cannot be read .KeyError: 'points'"),
        (result({"points": [[0, 0], [1, "x"], [2, 2]]}), "cannot be read .TypeError"),
        (result({"points": [[0, 0], [1], [2, 2]]}), "not enough values"),
        (result({"points": [[0, 0], [1, 1], [math.nan, 2]]}), "two numbers"),
        (result({"points": [[0, 0], [1, 1], [4000, 2]]}), "far outside"),
        (result({"x": 0, "y": 0, "radiusX": 0, "radiusY": 1}, "ellipselabels"), "radii 0.0 and"),
        (result({"rle": [0, 0]}, "brushlabels"), "ends too early"),
        (result({"rle": encode_brush(np.ones((W, W)) > 0)}, "brushlabels"), "for 40x20 pixels"),
        (result({"imageDataURL": "http://x"}, "bitmasklabels"), "must begin with data:image/png"),
        (result({"points": [[10**400, 0], [1, 1], [2, 2]]}), "OverflowError"),
        (result({}, type=["polygonlabels"]), "has no area"),
        (square(0, original_width=H), "20x20 pixels, the image .* of 40x20"),
    ],
)
def test_names_regions_that_cannot_be_read(folder, wrong, reason):
    with pytest.raises(DataFaults, match=rf"export.json: task 5: region bad.*{reason}") as error:
        read(folder, square(0, id="fine"), {**wrong, "id": "bad"})
    assert len(error.value.faults) == 1


@pytest.mark.parametrize(
    "content",
    [
        '{"tasks": []}',
        '[{"id": 1, "image": "/data/upload/1/a.png", "label": [{"x": 1}]}]',  # JSON-MIN
        '[{"id": 1, "data": {"image": "a.png"}, "completions": []}]',
        '[["a"]]',
    ],
)
def test_refuses_other_json(folder, content):
    (folder / "export.json").write_text(content)
    with pytest.raises(ValueError, match='export.json: .*Export as "JSON"'):
        labels_of(folder)


def test_refuses_what_is_missing(folder):
    with pytest.raises(FileNotFoundError, match="export.json"):
        labels_of(folder)
    write(folder, task({"id": 1, "result": []}))
    with pytest.raises(ValueError, match="does not say where the images lie"):
        list(read_label_studio(folder / "export.json", None))
