"""Faults of each format: all of them, each with its file; nothing is read that lies elsewhere."""

import base64
import io
import json
import logging
import shutil
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS
from ocr_panoptic.workbench.importing.voc import voc_color
from support.annotation_files import bitmap, city_polygons, coco
from support.faults import faults_of
from support.imported import FIXTURES, SCENES

IMAGES = SCENES / "images"


def read(format: str, source: Path, images: Path | None = None) -> list:
    return list(ANNOTATION_FORMATS[format].read(source, images))


@pytest.fixture
def coco_file(tmp_path):
    """Factory: a COCO JSON of one image and one object, changed."""

    def write(image: dict | None = None, annotation: dict | None = None, **changes: object) -> Path:
        square = {"segmentation": [[1, 1, 9, 1, 9, 9, 1, 9]]} | (annotation or {})
        names = ("train_00000.jpg",)
        content = coco(square, size=(64, 64), names=names, classes=("ball",), **changes)
        content["images"][0] |= image or {}
        (tmp_path / "coco.json").write_text(json.dumps(content))
        return tmp_path / "coco.json"

    return write


def test_coco(coco_file):
    (image,) = read("coco", coco_file(annotation={"score": 0.5}), IMAGES)
    (segment,) = image.segments
    assert (image.name, image.height, image.width) == ("train_00000.jpg", 64, 64)
    assert (segment.label, segment.instance, segment.score) == ("ball", True, 0.5)
    assert segment.pixels().sum() == 64
    (image,) = read("coco", coco_file(annotation={"segmentation": [[1, 1, 9, 9]]}), IMAGES)
    assert not image.segments[0].pixels().any(), "a line"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image": {"file_name": "../x.jpg"}}, "must lie inside the given folder"),
        ({"image": {"file_name": "/etc/x.jpg"}}, "must lie inside the given folder"),
        ({"image": {"file_name": "a\x1b[2J.jpg"}}, "no control characters"),
        ({"image": {"file_name": "none.jpg"}}, "none.jpg not found. Is .*images the right folder"),
        ({"image": {"height": 63}}, "is of 64x63 pixels, the image .*jpg of 64x64"),
        ({"image": {"id": None}}, "an image needs an id"),
        ({"image": {"width": None}}, "image 1: does not say the image's width and height"),
        ({"annotation": {"image_id": 2}}, 'annotation 1: image 2 is not in "images"'),
        ({"annotation": {"category_id": 4}}, 'annotation 1: category 4 is not in "categories"'),
        ({"annotation": {"segmentation": [[1, 2, 3]]}}, r"annotation 1 of train_00000.jpg: a poly"),
        ({"annotation": {"segmentation": {"counts": 4}}}, "an RLE must be an object"),
        ({"annotation": {"segmentation": "x"}}, "must be polygons or an RLE"),
        ({"annotation": {"iscrowd": 2}}, "iscrowd must be 0 or 1, found 2"),
        ({"annotation": {"score": 7}}, "score must be a number 0..1, found 7"),
        ({"annotation": {"segmentation": []}}, 'no annotation has a "segmentation". Boxes alone'),
        ({"annotation": {"segments_info": []}}, "is a panoptic JSON"),
        ({"categories": [{"id": 3, "name": "a"}] * 2}, "category id 3 is used twice"),
        ({"categories": [{"id": 3, "name": "a"}, {"id": 4, "name": "a"}]}, "'a' comes 2 times"),
        ({"categories": [{"id": "3"}]}, "needs an integer id and a name"),
        ({"categories": {}}, "missing or no list: categories"),
    ],
)
def test_faults_of_coco(coco_file, changes, message):
    path = coco_file(**changes)
    with pytest.raises(ValueError, match=message) as error:
        read("coco", path, IMAGES)
    assert str(path) in str(error.value)


def test_memory_of_coco(tmp_path):
    """Python's list of numbers has 32 bytes for each."""
    polygons = np.random.default_rng(0).uniform(0, 63, (60, 200)).round(2)
    shapes = [{"segmentation": [polygon.tolist()]} for polygon in polygons]
    path, names = tmp_path / "coco.json", ("train_00000.jpg",)
    path.write_text(json.dumps(coco(*shapes, size=(64, 64), names=names)))
    assert len(read("coco", path, IMAGES)[0].segments) == 60
    tracemalloc.start()
    next(ANNOTATION_FORMATS["coco"].read(path, IMAGES))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 * polygons.size


def test_all_faults_of_coco_are_told_and_where_images_lie(tmp_path):
    path, shapes = tmp_path / "coco.json", ([[1]], [[1]], [[0] * 6])
    objects = [{"segmentation": shape} for shape in shapes]
    path.write_text(json.dumps(coco(*objects, size=(64, 64), names=("train_00000.jpg",))))
    assert len(faults_of(read, "coco", path, IMAGES)) == 2
    with pytest.raises(ValueError, match="give their folder after it"):
        read("coco", path)


@pytest.fixture
def yolo(tmp_path) -> Path:
    shutil.copytree(FIXTURES / "yolo", tmp_path / "yolo")
    return tmp_path / "yolo"


@pytest.mark.parametrize(
    "line, message",
    [
        ("0 .1 .1 .2 .2", "line 1: is a box"),
        ("4 .1 .1 .2 .2 .3 .1", "line 1: the class 4 is not in the names"),
        ("ball .1 .1 .2 .2 .3 .1", "line 1: the class ball is not in the names"),
        ("0 .1 .1 .2 .2 .3", "expected class x y x y"),
        ("0 .1 .1 .2 .2 .3 nan", "expected class x y x y"),
        ("0 10 10 20 20 30 10", r"point \(1920, 640\) of a polygon lies far outside"),
    ],
)
def test_faults_of_yolo(yolo, line, message):
    (yolo / "labels/train_00000.txt").write_text(line + "\n0 .1 .1 .2 .2 .3 .1\n")
    with pytest.raises(DataFaults, match=f"labels/train_00000.txt: .*{message}") as error:
        read("yolo-seg", yolo / "data.yaml")
    assert len(error.value.faults) == 1


def test_yolo_layouts(yolo, caplog):
    """Ultralytics has images/train, Roboflow train/images and a path that leads out of the folder;
    an image without text is one without objects, a text without image is warned of."""
    found = [len(image.segments) for image in read("yolo-seg", yolo / "data.yaml")]
    assert found == [5, 3, 5]
    (yolo / "labels/train_00000.txt").rename(yolo / "labels/lost.txt")
    with caplog.at_level(logging.INFO):
        found = read("yolo-seg", yolo / "data.yaml", yolo / "images")
    assert [len(image.segments) for image in found] == [0, 3, 5]
    assert "1 text files have no image: lost.txt" in caplog.text
    assert "1 of 3 images have no text file" in caplog.text
    for kind in ("images", "labels"):
        for split in ("train", "valid"):
            shutil.copytree(yolo / kind, yolo / split / kind)
    names = "names: [ball, crate, tent, starfish]\n"
    (yolo / "data.yaml").write_text(names + "train: ../train/images\nval: ../valid/images\n")
    found = read("yolo-seg", yolo / "data.yaml")
    expected = [f"{split}/images/train_00000.jpg" for split in ("train", "valid")]
    assert [image.name for image in found[::3]] == expected


@pytest.mark.parametrize(
    "text, message",
    [
        ("train: images", "expected names: with a list"),
        ("names: [a, a]\ntrain: images", "the class a comes 2 times"),
        ("names: [a]", "names no folder of images .* Give the folder of images after"),
        ("names: [a]\ntrain: nowhere", "train: nowhere is no folder"),
        ("names: [a]\ntrain: pictures", "none of the 3 images has a text file in .*/pictures"),
        ("names: [a]\ntrain: ../..", "train: ../.. leads out of the folder"),
        ("names: [a]\npath: /\ntrain: tmp", "train: tmp leads out of the folder|is no folder"),
    ],
)
def test_faults_of_data_yaml(yolo, text, message):
    (yolo / "data.yaml").write_text(text)
    shutil.copytree(yolo / "images", yolo / "pictures")
    with pytest.raises(ValueError, match=message):
        read("yolo-seg", yolo / "data.yaml")


@pytest.fixture
def voc(tmp_path) -> Path:
    shutil.copytree(FIXTURES / "voc", tmp_path / "voc")
    return tmp_path / "voc"


def test_colours_of_voc():
    """https://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/devkit_doc.html names some."""
    known = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 7: (128, 128, 128), 8: (64, 0, 0)}
    assert {index: voc_color(index) for index in known} == known
    assert voc_color(20) == (0, 64, 128) and voc_color(255) == (224, 224, 192)


@pytest.mark.parametrize("kind", ["palette", "one channel", "colours"])
def test_voc_2012(tmp_path, kind):
    """No labelmap.txt: the 20 classes of VOC; void around objects."""
    classes, objects = np.zeros((64, 64), np.uint8), np.zeros((64, 64), np.uint8)
    classes[:9], classes[2:5, 2:5], classes[30:, 30:] = 255, 15, 7
    objects[:9], objects[2:5, 2:5], objects[40:42, 40:42] = 255, 1, 255
    colors = np.array([voc_color(index) for index in range(256)], np.uint8)
    for folder, labels in (("SegmentationClass", classes), ("SegmentationObject", objects)):
        picture = Image.fromarray(colors[labels] if kind == "colours" else labels)
        if kind == "palette":
            picture.putpalette(colors.tobytes())
        (tmp_path / folder).mkdir()
        picture.save(tmp_path / folder / "train_00000.png")
    (image,) = read("voc", tmp_path, IMAGES)
    found = {s.label: (s.instance, int(s.pixels().sum())) for s in image.segments}
    assert found == {"person": (True, 9), "car": (False, 34 * 34)}


def test_voc_as_people_name_it(tmp_path):
    """A suffix in capitals, a class in the colour that VOC 2012 has for void, no objects."""
    (tmp_path / "JPEGImages").mkdir()
    shutil.copy(IMAGES / "train_00000.jpg", tmp_path / "JPEGImages/train_00000.JPG")
    colors = np.zeros((64, 64, 3), np.uint8)
    colors[:2] = voc_color(255)
    (tmp_path / "SegmentationClass").mkdir()
    Image.fromarray(colors).save(tmp_path / "SegmentationClass/train_00000.png")
    (tmp_path / "labelmap.txt").write_text("background:0,0,0::\nsand:224,224,192::\n")
    (image,) = read("voc", tmp_path)
    assert image.name == "train_00000.JPG"
    found = [(s.label, s.instance, s.pixels().sum()) for s in image.segments]
    assert found == [("sand", False, 2 * 64)]


def test_a_missing_png_of_objects(voc):
    """A missing PNG is a fault: its things would be one crowd, and nobody told."""
    (voc / "SegmentationObject/train_00002.png").unlink()
    with pytest.raises(DataFaults, match=r"SegmentationObject/train_00002.png: .*not found"):
        read("voc", voc, IMAGES)


def test_sizes_before_a_turn(voc, tmp_path):
    """Annotated as the file lies, shown as its EXIF data say: the message says which."""
    exif = Image.Exif()
    exif[274] = 6
    shutil.copytree(IMAGES, tmp_path / "turned")
    Image.new("RGB", (64, 32)).save(tmp_path / "turned/train_00000.jpg", exif=exif)
    with pytest.raises(DataFaults, match="of 32x64 .width x height. once turned as its EXIF orien"):
        read("voc", voc, tmp_path / "turned")


def test_a_list_of_voc(voc):
    path = voc / "ImageSets/Segmentation/train.txt"
    path.write_text("train_00002\n")
    assert [image.name for image in read("voc", path, IMAGES)] == ["train_00002.jpg"]
    path.write_text("../../x\n")
    with pytest.raises(ValueError, match=r"must lie inside the given folder"):
        read("voc", path, IMAGES)


def test_faults_of_voc(voc):
    (voc / "labelmap.txt").write_text("background:0,0,0::\nball:128,0,0::\n")
    Image.new("RGB", (5, 4)).save(voc / "SegmentationObject/train_00002.png")
    first, second, third = faults_of(read, "voc", voc, IMAGES)
    assert "SegmentationClass/train_00000.png: colours that are no class of" in first
    assert "[[192, 0, 0], [0, 128, 0], [128, 128, 0], [0, 128, 128]], on 3882" in first
    assert "SegmentationClass/train_00002.png" in second and "train_00007.png" in third
    wrong = {"a:1,2::": "expected name:R,G,B", "a:1,2,3::\nb:1,2,3::": "b: the colour .* comes tw"}
    for text, message in wrong.items():
        (voc / "labelmap.txt").write_text(text)
        with pytest.raises(ValueError, match=f"labelmap.txt: {message}"):
            read("voc", voc, IMAGES)
    with pytest.raises(FileNotFoundError, match="SegmentationClass: not found. Give the folder"):
        read("voc", voc / "ImageSets", IMAGES)


@pytest.fixture
def project(tmp_path) -> Path:
    shutil.copytree(FIXTURES / "supervisely", tmp_path / "project")
    return tmp_path / "project"


def set_figures(project: Path, *figures: object) -> None:
    path = project / "polygons/ann/train_00000.jpg.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"objects": figures}))


def test_supervisely(project, caplog):
    """Images of several data sets; a figure over the border and figures without area."""
    hole = [[12, 12], [16, 12], [16, 16], [12, 16]]
    ring = {"exterior": [[10, 10], [20, 10], [20, 20], [10, 20]], "interior": [hole]}
    set_figures(
        project,
        bitmap(np.eye(4)) | {"instance": "a1"},
        {"classTitle": "sky", "geometryType": "polygon", "points": ring, "instance": "a1"},
        {"classTitle": "sky", "geometryType": "rectangle", "points": {}},
    )
    with caplog.at_level(logging.WARNING):
        found = {image.name: image for image in read("supervisely", project)}
    assert "1 figures are left out, as each is a rectangle" in caplog.text
    assert len(found) == 4 and "bitmaps/train_00000.jpg" in found
    ball, sky = found["polygons/train_00000.jpg"].segments
    assert np.argwhere(ball.pixels()).tolist() == [[2, 60], [3, 61], [4, 62], [5, 63]]
    assert sky.pixels().sum() == 11 * 11 - 5 * 5 and sky.instance is None


def test_parts_of_objects(project):
    """Figures of a class with one instance are one object, where others do not cover them."""
    corner, row = np.eye(2)[:1], np.ones((1, 2))
    set_figures(
        project,
        bitmap(row, origin=[0, 0]) | {"instance": "a1"},
        bitmap(corner, origin=[0, 0]) | {"classTitle": "tent", "instance": "a1"},
        bitmap(row, origin=[0, 5]) | {"instance": "a1"},
        bitmap(row, origin=[0, 9]),
    )
    (image,) = read("supervisely", project / "polygons")
    assert [(s.label, np.argwhere(s.pixels()).tolist()) for s in image.segments] == [
        ("tent", [[0, 0]]),
        ("ball", [[0, 1], [5, 0], [5, 1]]),
        ("ball", [[9, 0], [9, 1]]),
    ]


def test_bitmaps_with_opacity(project):
    """Opacity says what the object is, whatever the colour below."""
    opacity = np.eye(4, dtype=np.uint8) * 255
    for colors in (1, 3):
        pixels = np.dstack([np.full((4, 4), 255, np.uint8)] * colors + [opacity])
        set_figures(project, bitmap(pixels / 255))
        (image,) = read("supervisely", project / "polygons")
        (segment,) = image.segments
        assert np.argwhere(segment.pixels()).tolist() == [[2, 60], [3, 61], [4, 62], [5, 63]]


def declared_size(side: int) -> str:
    """A PNG whose header says so, as Supervisely writes it."""
    file = io.BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG")
    content = file.getvalue()
    header = b"IHDR" + side.to_bytes(4, "big") * 2 + content[24:29]
    return base64.b64encode(
        content[:12] + header + zlib.crc32(header).to_bytes(4, "big") + content[33:]
    ).decode()


@pytest.mark.parametrize(
    "figure, message",
    [
        (bitmap(np.eye(5)), r"mask of 5x5 pixels at x 60, y 2 does not lie in the image"),
        (bitmap(np.eye(4), origin=[-1, 0]), "does not lie in"),
        (bitmap(np.eye(4), origin=[0.5, 0]), 'needs "data" and "origin"'),
        (bitmap(np.eye(4), data="!"), "the bitmap is broken"),
        (bitmap(np.eye(4), data=base64.b64encode(zlib.compress(b"0" * 10**7)).decode()), "broken"),
        (bitmap(np.eye(4), data=declared_size(10**5)), "the bitmap is broken"),
        ({"classTitle": "x", "geometryType": "bitmap"}, "classTitle 'x' is not in meta.json"),
        ({"classTitle": "sky", "geometryType": "polygon", "points": 4}, "needs points with"),
        ([], "expected an object of JSON"),
    ],
)
def test_faults_of_supervisely(project, figure, message):
    set_figures(project, figure)
    with pytest.raises(DataFaults, match=f"train_00000.jpg.json: object 0: .*{message}"):
        read("supervisely", project / "polygons")


def test_what_a_project_must_have(project):
    with pytest.raises(ValueError, match="give no folder of images"):
        read("supervisely", project, IMAGES)
    (project / "bitmaps/img/train_00002.jpg").unlink()
    with pytest.raises(DataFaults, match="train_00002.jpg not found"):
        read("supervisely", project)
    (project / "meta.json").unlink()
    (project / "loop").symlink_to("loop")
    for source in (project, project / "loop"):
        with pytest.raises(FileNotFoundError, match="meta.json: not found. Give the folder of a p"):
            read("supervisely", source)


SQUARE = [[0, 0], [9, 0], [9, 9], [0, 9]]


def write_city(folder: Path, content: dict) -> None:
    (folder / "train_00000_gtFine_polygons.json").write_text(json.dumps(content))


def test_cityscapes_polygons(tmp_path):
    """Classes of one's own, a group, a deleted one; the license plate that is not drawn."""
    labels = ("zebra", "zebragroup", "polegroup", "car", "license plate")
    objects = [
        {"label": label, "polygon": [[x, y + 20 * place] for x, y in SQUARE]}
        for place, label in enumerate(labels[:3])
    ]
    objects += [
        {"label": "car", "polygon": SQUARE, "deleted": 1},
        {"label": "license plate", "polygon": SQUARE},
        {"label": "car", "polygon": [[3, 3]]},
    ]
    write_city(tmp_path, city_polygons(*objects, size=(64, 64)))
    (image,) = read("cityscapes-polygons", tmp_path, IMAGES)
    found = [(s.label, s.instance, int(s.pixels().sum())) for s in image.segments]
    assert found == [("zebra", None, 100), ("zebra", False, 100), ("polegroup", None, 100)]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"objects": [{"label": "car"}, {"label": 3}]}, "object 1: expected a label and a polygon"),
        ({"objects": [{"label": "car", "polygon": [[0]]}]}, "object 0: a polygon must be a list o"),
        ({"imgWidth": 65}, "is of 65x64 pixels, the image .* of 64x64"),
        ({"objects": None}, "expected a list of objects"),
    ],
)
def test_faults_of_cityscapes_polygons(tmp_path, changes, message):
    write_city(tmp_path, city_polygons(size=(64, 64), **changes))
    with pytest.raises(DataFaults, match=f"train_00000_gtFine_polygons.json: .*{message}"):
        read("cityscapes-polygons", tmp_path, IMAGES)


def test_faults_of_cityscapes_pngs(tmp_path):
    labels = np.full((64, 64), 23, np.uint16)
    labels[3] = 34007
    Image.fromarray(labels).save(tmp_path / "train_00000_instanceIds.png")
    with pytest.raises(DataFaults, match=r"the ids \[34007\] are no label ids of Cityscapes"):
        read("cityscapes", tmp_path, IMAGES)
    with pytest.raises(ValueError, match="no file that ends in _polygons.json"):
        read("cityscapes-polygons", tmp_path, IMAGES)
