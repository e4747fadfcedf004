"""Peculiarities of single formats: layouts, references to images, parts, painting order."""

import json
import logging
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.labels import write_label_png
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS
from ocr_panoptic.workbench.importing.voc import voc_color
from support.annotation_files import (
    SIZE,
    base64_png,
    bitmap,
    brush,
    city_polygons,
    coco,
    region,
    save,
)
from support.imported import FIXTURES, SCENES
from support.tool_exports import EXPORTS
from support.tool_exports import IMAGES as TOOL_IMAGES

IMAGES = SCENES / "images"
H, W = SIZE


def read(format: str, source: Path, images: Path | None = None) -> list:
    return list(ANNOTATION_FORMATS[format].read(source, images))


def columns(image) -> list[tuple[str, list[int]]]:
    return [(s.label, np.flatnonzero(s.pixels()[0]).tolist()) for s in image.segments]


# COCO


def test_categories_with_the_same_name(folder, caplog):
    box = {"segmentation": [[1, 1, 9, 1, 9, 9]]}
    content = coco(box, box | {"category_id": 2}, size=SIZE, classes=("car", "car"))
    (image,) = read("coco", save(folder / "coco.json", content), folder / "images")
    assert [segment.label for segment in image.segments] == ["car", "car"]
    assert "2 categories are named 'car'" in caplog.text


# YOLO


def test_yolo_layouts(tmp_path, caplog):
    """
    Ultralytics has images/train; Roboflow has train/images and a path out of the folder.

    An image without text file has no objects; a text file without image gives a warning.
    """
    yolo = shutil.copytree(FIXTURES / "yolo", tmp_path / "images/yolo")
    found = [len(image.segments) for image in read("yolo-seg", yolo / "data.yaml")]
    assert found == [5, 3, 5]
    (yolo / "labels/train_00000.txt").rename(yolo / "labels/lost.txt")
    with caplog.at_level(logging.INFO):
        found = read("yolo-seg", yolo / "data.yaml", yolo / "images")
    assert [len(image.segments) for image in found] == [0, 3, 5]
    assert "1 label file(s) without an image: lost.txt" in caplog.text
    assert "no label file (.txt), so no objects, for 1 of 3 images" in caplog.text
    for split in ("train", "valid"):
        for kind in ("images", "labels"):
            shutil.copytree(yolo / kind, yolo / split / kind)
    names = "names: [ball, crate, tent, starfish]\n"
    save(yolo / "data.yaml", names + "train: ../train/images\nval: ../valid/images\n")
    found = read("yolo-seg", yolo / "data.yaml")
    expected = [f"{split}/images/train_00000.jpg" for split in ("train", "valid")]
    assert [image.name for image in found[::3]] == expected
    save(yolo / "data.yaml", names)  # as from the supervision package
    assert read("yolo-seg", yolo / "data.yaml") == found


# Pascal VOC


def test_colours_of_voc():
    """https://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/devkit_doc.html names some."""
    known = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 7: (128, 128, 128), 8: (64, 0, 0)}
    assert {index: voc_color(index) for index in known} == known
    assert voc_color(20) == (0, 64, 128) and voc_color(255) == (224, 224, 192)


@pytest.mark.parametrize("kind", ["palette", "one channel", "colours"])
def test_voc_2012(tmp_path, kind):
    """Without labelmap.txt there are VOC's 20 classes; void is around objects and inside them."""
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


def test_voc_with_unusual_names(tmp_path):
    """A suffix is in capitals, a class has VOC 2012's colour of void, and objects are missing."""
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


def test_faults_of_voc(tmp_path):
    """A missing PNG of objects is a fault, because its things would silently become a crowd."""
    voc = shutil.copytree(FIXTURES / "voc", tmp_path / "voc")
    (voc / "SegmentationObject/train_00002.png").unlink()
    with pytest.raises(DataFaults, match=r"SegmentationObject/train_00002.png: .*not found"):
        read("voc", voc, IMAGES)
    (voc / "labelmap.txt").write_text("background:0,0,0::\nball:128,0,0::\n")
    with pytest.raises(DataFaults, match="Class/train_00000.png: the colours .* belong to no"):
        read("voc", voc, IMAGES)
    for text in ("a:1,2::", "a:1,2,x::", "a:1,2,256::", "a:1,2,3::\nb:1,2,3::"):
        message = "b: colour .* is used twice" if "b" in text else "expected name:R,G,B"
        save(voc / "labelmap.txt", text)
        with pytest.raises(ValueError, match=f"labelmap.txt: {message}"):
            read("voc", voc, IMAGES)


def test_class_names_of_labelme2voc(tmp_path):
    """LabelMe numbers shapes of stuff too."""
    labels = np.zeros((64, 64), np.uint8)
    labels[:2], labels[9], labels[20:] = 1, 2, 255  # 255 is __ignore__
    for folder in ("SegmentationClass", "SegmentationObject"):
        write_label_png(tmp_path / folder / "train_00000.png", labels)
    for first in ("_background_", "__ignore__\n_background_", "background"):
        save(tmp_path / "class_names.txt", f"{first}\n#1: leaf\nsoil")
        (image,) = read("voc", tmp_path, IMAGES)
        found = [(s.label, s.instance, s.pixels().sum()) for s in image.segments]
        assert found == [("#1: leaf", None, 2 * 64), ("soil", None, 64)]
    for text, message in (
        ("_background_\nleaf", r"labels 2 .* no class of .*class_names.txt"),
        ("leaf\nsoil", "expected _background_ as the first class"),
    ):
        save(tmp_path / "class_names.txt", text)
        with pytest.raises((DataFaults, UserError), match=message):
            read("voc", tmp_path, IMAGES)


def test_voc_colours_that_are_not_vocs(tmp_path):
    """Navy is VOC's colour of label 4, but here the label is 1."""
    labels = np.zeros((64, 64), np.uint8)
    labels[:2] = 1
    picture = Image.fromarray(labels, "P")
    picture.putpalette([0, 0, 0, 0, 0, 128])
    save(tmp_path / "class_names.txt", "_background_\nleaf")
    (tmp_path / "SegmentationClass").mkdir()
    path = tmp_path / "SegmentationClass/train_00000.png"
    picture.save(path)
    with pytest.raises(DataFaults, match=r"colours \[0, 0, 128\] .* save the PNGs without pal"):
        read("voc", tmp_path, IMAGES)
    write_label_png(path, labels)
    (image,) = read("voc", tmp_path, IMAGES)
    assert [(s.label, s.pixels().sum()) for s in image.segments] == [("leaf", 2 * 64)]


def test_a_list_of_voc(tmp_path):
    """The list is as a Windows editor saves it."""
    voc = shutil.copytree(FIXTURES / "voc", tmp_path / "voc")
    path = voc / "ImageSets/Segmentation/train.txt"
    path.write_bytes(b"\xef\xbb\xbftrain_00002\r\ntrain_00000\r\n")
    expected = ["train_00002.jpg", "train_00000.jpg"]
    assert [image.name for image in read("voc", path, IMAGES)] == expected


def test_sizes_before_rotation(tmp_path):
    """The message says if annotations have the stored size, but EXIF data turn the image."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    shutil.copytree(IMAGES, tmp_path / "turned")
    Image.new("RGB", (64, 32)).save(tmp_path / "turned/train_00000.jpg", exif=exif)
    with pytest.raises(DataFaults, match="32x64 .width x height. after rotation by its EXIF or"):
        read("voc", FIXTURES / "voc", tmp_path / "turned")


# Supervisely


def supervisely(root: Path, *figures: dict) -> list:
    project = root / "project"
    shutil.copytree(FIXTURES / "supervisely", project, dirs_exist_ok=True)
    path = project / "polygons/ann/train_00000.jpg.json"
    save(path, json.loads(path.read_text()) | {"objects": figures})
    (image,) = read("supervisely", project / "polygons")
    return [(s.label, np.argwhere(s.pixels()).tolist()) for s in image.segments]


def test_supervisely(tmp_path):
    """A figure crosses the border, a hole has its border, a box is filled, a line has no area."""
    hole = [[12, 12], [16, 12], [16, 16], [12, 16]]
    ring = {"exterior": [[10, 10], [20, 10], [20, 20], [10, 20]], "interior": [hole]}
    corners = {"exterior": [[1, 2], [3, 3]]}
    ball, sky, box = supervisely(
        tmp_path,
        bitmap(np.eye(4)) | {"instance": "a1"},
        {"classTitle": "sky", "geometryType": "polygon", "points": ring, "instance": "a1"},
        {"classTitle": "sky", "geometryType": "rectangle", "points": corners},
        {"classTitle": "sky", "geometryType": "line", "points": {}},
    )
    assert box == ("sky", [[y, x] for y in (2, 3) for x in (1, 2, 3)])
    assert ball == ("ball", [[2, 60], [3, 61], [4, 62], [5, 63]])
    assert len(sky[1]) == 11 * 11 - 5 * 5
    names = [image.name for image in read("supervisely", tmp_path / "project")]
    assert len(names) == 4 and "bitmaps/train_00000.jpg" in names


def test_parts_of_objects_in_supervisely(tmp_path):
    """Figures with equal class and instance form an object, except where others cover them."""
    corner, row = np.eye(2)[:1], np.ones((1, 2))
    assert supervisely(
        tmp_path,
        bitmap(row, origin=[0, 0]) | {"instance": "a1"},
        bitmap(corner, origin=[0, 0]) | {"classTitle": "tent", "instance": "a1"},
        bitmap(row, origin=[0, 5]) | {"instance": "a1"},
        bitmap(row, origin=[0, 9]),
    ) == [("tent", [[0, 0]]), ("ball", [[0, 1], [5, 0], [5, 1]]), ("ball", [[9, 0], [9, 1]])]


def test_bitmaps_with_opacity(tmp_path):
    """The alpha channel defines the object, whatever the colours are."""
    opacity = np.eye(4, dtype=np.uint8) * 255
    for channels in (1, 3):
        pixels = np.dstack([np.full((4, 4), 255, np.uint8)] * channels + [opacity])
        ((_, places),) = supervisely(tmp_path, bitmap(pixels / 255))
        assert places == [[2, 60], [3, 61], [4, 62], [5, 63]]


# Cityscapes


def test_cityscapes_polygons(tmp_path):
    def polygon(label: str, top: int = 0, **others: int) -> dict:
        corners = [[0, top], [9, top], [9, top + 9], [0, top + 9]]
        return {"label": label, "polygon": corners, **others}

    content = city_polygons(
        *(polygon("zebra"), polygon("zebragroup", 20), polygon("polegroup", 40)),
        *(polygon("car", deleted=1), polygon("license plate")),
        {"label": "car", "polygon": [[3, 3]]},
        size=(64, 64),
    )
    save(tmp_path / "train_00000_gtFine_polygons.json", content)
    (image,) = read("cityscapes-polygons", tmp_path, IMAGES)
    found = [(s.label, s.instance, int(s.pixels().sum())) for s in image.segments]
    assert found == [("zebra", None, 100), ("zebra", False, 100), ("polegroup", None, 100)]


def test_cityscapes_pngs_with_other_ids(tmp_path):
    labels = np.full((64, 64), 23, np.uint16)
    labels[3] = 34007
    Image.fromarray(labels).save(tmp_path / "train_00000_instanceIds.png")
    with pytest.raises(DataFaults, match="34007 is not a Cityscapes label id"):
        read("cityscapes", tmp_path, IMAGES)


# CVAT


def cvat(folder: Path, shapes: str, name: str = 'name="a.png"'):
    image = f'<image id="0" {name} width="{W}" height="{H}">{shapes}</image>'
    save(folder / "annotations.xml", f"<annotations><version>1.1</version>{image}</annotations>")
    (image,) = read("cvat", folder)
    return image


def cvat_box(label: str, left: int, right: int, other: str = "") -> str:
    return f'<box label="{label}" xtl="{left}" ytl="0" xbr="{right}" ybr="1" {other}/>'


def test_cvat_paints_by_z_order_and_then_in_the_order_of_the_file(folder):
    places = {"top": 'z_order="3"', "first": "", "second": "", "low": 'z_order="-1"'}
    shapes = [cvat_box(label, 0, 1, place) for label, place in places.items()]
    image = cvat(folder, "".join([*shapes, '<tag label="x"/>']))
    assert [segment.label for segment in image.segments] == ["low", "first", "second", "top"]


def test_cvat_boxes_and_ellipses_are_rotated(folder):
    box = 'label="b" xtl="2.00" ytl="3.00" xbr="8.00" ybr="5.00" rotation="90.00"'
    oval = 'label="d" cx="20.00" cy="12.00" rx="10.00" ry="2.00" rotation="90.00"'
    box, oval = (s.pixels() for s in cvat(folder, f"<box {box}/><ellipse {oval}/>").segments)
    assert box[1:7, 4:6].all() and box.sum() == 12
    assert oval[2:22, 19:21].all() and not oval[:, 23:].any()


@pytest.mark.parametrize(
    "runs, pixels",
    [("1, 3, 2", [[2, 6], [2, 7], [3, 5]]), ("0, 1, 3, 2", [[2, 5], [3, 6], [3, 7]])],
)
def test_cvat_places_masks(folder, runs, pixels):
    """As in CVAT's documentation, runs go row after row, and the first is outside the mask."""
    shape = f'<mask label="m" rle="{runs}" left="5" top="2" width="3" height="2"/>'
    (found,) = cvat(folder, shape).segments
    assert np.argwhere(found.pixels()).tolist() == pixels


def test_cvat_joins_the_shapes_of_a_group(folder):
    one, other = 'group_id="1"', 'group_id="2"'
    shapes = cvat_box("cat", 0, 2, one), cvat_box("cat", 3, 4), cvat_box("cat", 5, 6, one)
    shapes += cvat_box("dog", 7, 8, one), cvat_box("cat", 9, 10, other)
    shapes += cvat_box("cat", 11, 12, 'group_id="0"'), cvat_box("cat", 13, 14, 'group_id="0"')
    expected = [("cat", [3]), ("cat", [0, 1, 5]), ("dog", [7]), ("cat", [9])]
    expected += [("cat", [11]), ("cat", [13])]
    assert columns(cvat(folder, "".join(shapes))) == expected


@pytest.mark.parametrize(
    "file, name",
    [
        ("Train/a.png", 'name="a.png" subset="Train"'),
        ("frame_000000.PNG", 'name="frame_000000"'),
        ("frame_000000.png", 'name="frame_000000"'),
        ("frame_000000.jpg", 'name="frame_000000"'),
    ],
)
def test_cvat_finds_images_of_subsets_and_frames(folder, file, name):
    (folder / "images" / file).parent.mkdir(exist_ok=True)
    (folder / "images/a.png").rename(folder / "images" / file)
    assert cvat(folder, "", name).name == file


# VIA


def test_via_ellipses_are_rotated(folder):
    shape = {"name": "ellipse", "cx": 20, "cy": 12, "rx": 10, "ry": 2, "theta": np.pi / 2}
    entry = {"filename": "a.png", "regions": [{"shape_attributes": shape}]}
    (image,) = read("via", save(folder / "via.json", {"a": entry}), folder / "images")
    oval = image.segments[0].pixels()
    assert oval[2:22, 19:21].all() and not oval[:, 23:].any()


@pytest.mark.parametrize(
    ("attributes", "label"),
    [
        ({"name": "cat", "colour": "red"}, "cat"),
        ({"name": "Tom", "type": "tabby", "label": "cat"}, "cat"),
        ({"name": "Tom", "type": "tabby"}, "rename the class attribute to label"),
        ({"comment": ""}, "object"),
    ],
)
def test_via_attributes(folder, attributes, label):
    shape = {"name": "rect", "x": 1, "y": 1, "width": 3, "height": 3}
    region = {"shape_attributes": shape, "region_attributes": attributes}
    path = save(folder / "via.json", {"a": {"filename": "a.png", "regions": [region]}})
    with pytest.raises(UserError, match=label) if " " in label else nullcontext():
        (image,) = read("via", path, folder / "images")
        assert image.segments[0].label == label


# LabelMe


def test_labelme_shapes_equal_labelmes_drawing():
    (image,) = read("labelme", EXPORTS / "labelme_shapes", TOOL_IMAGES)
    assert [segment.label for segment in image.segments] == ["grass", "ball", "crate", "tent"]
    theirs = np.asarray(Image.open(EXPORTS / "labelme_shapes" / "shapes.png"))
    ours = np.zeros_like(theirs)
    for number, segment in enumerate(image.segments, 1):
        ours[segment.pixels()] = number
    assert np.array_equal(ours, theirs)


def labelme(path: Path, *shapes: dict, image_path: str = "a.png", **others: object) -> None:
    size = {"imageHeight": H, "imageWidth": W}
    save(path, {"imagePath": image_path, "imageData": None, **size, "shapes": shapes, **others})


@pytest.mark.parametrize(
    "json_name, image_path, images, name",
    [
        ("a.json", "a.png", None, "a.png"),
        ("b/a.json", "a.png", None, "b/a.png"),
        ("b/a.json", "..\\a.png", None, "a.png"),
        ("b/a.json", "../b/./a.png", None, "b/a.png"),
        ("c/a.json", "a.png", "", "a.png"),
        ("labels/a.json", "../b/a.png", "b", "a.png"),
        ("labels/b/a.json", "a.png", "", "b/a.png"),
        ("labels/a.json", "C:\\Users\\me\\b\\a.png", "b", "a.png"),
    ],
)
def test_labelme_finds_the_image(tmp_path, json_name, image_path, images, name):
    for file in ("a.png", "b/a.png"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        Image.new("RGB", (W, H)).save(tmp_path / file)
    labelme(tmp_path / json_name, image_path=image_path)
    source = tmp_path / "labels" if json_name.startswith("labels") else tmp_path
    images = None if images is None else tmp_path / images
    (image,) = read("labelme", source, images)
    assert image.name == name
    assert image.file.samefile((images or tmp_path) / name)


# Label Studio


def task(*annotations: dict, image: str = "a.png", **others) -> dict:
    return {"id": 5, "data": {"image": image}, "annotations": list(annotations), **others}


def label_studio(folder: Path, *tasks: dict):
    (image,) = read("label-studio", save(folder / "export.json", list(tasks)), folder / "images")
    return image


def regions(folder: Path, *results: dict) -> list[tuple[str, np.ndarray]]:
    image = label_studio(folder, task({"id": 1, "result": list(results)}))
    return [(segment.label, segment.pixels()) for segment in image.segments]


def square(label: str = "car") -> dict:
    """Return a region of 4 x 2 pixels."""
    return region({"points": [[0, 0], [10, 0], [10, 8.3], [0, 8.3]]}, label=label)


@pytest.mark.parametrize("has_outline", [True, False])
@pytest.mark.parametrize("format", ["cvat", "labelme", "label-studio"])
def test_a_box_beside_the_outline_of_its_object_is_left_out(folder, format, has_outline):
    """A box that another part of the object leaves stays a part of it."""
    x = 0 if has_outline else 20
    points = [(x, 0), (x + 10, 0), (x, 8)]
    if format == "cvat":
        text = ";".join(f"{x},{y}" for x, y in points)
        boxed = '<box label="b" xtl="0" ytl="0" xbr="10" ybr="8" group_id="1"/>'
        outlined = f'<polygon label="b" points="{text}" group_id="1"/>'
        image = cvat(folder, outlined + boxed)
    elif format == "labelme":
        boxed = {"shape_type": "rectangle", "points": [[0, 0], [10, 8]]}
        shapes = ({"label": "b", "group_id": 1, **s} for s in (boxed, {"points": points}))
        labelme(folder / "images/a.json", *shapes)
        (image,) = read("labelme", folder / "images")
    else:
        boxed = {"x": 0, "y": 0, "width": 100 * 10 / W, "height": 100 * 8 / H}
        shape = {"points": [(100 * x / W, 100 * y / H) for x, y in points]}
        regions = region(boxed, "rectanglelabels", id="p"), region(shape, id="c", parentID="p")
        image = label_studio(folder, task({"id": 1, "result": list(regions)}))
    (segment,) = image.segments
    assert (segment.pixels().sum() < 70) == has_outline and segment.pixels()[:8, :1].all()


def test_label_studio_shapes_are_rotated(folder):
    box = {"x": 25, "y": 25, "width": 10, "height": 25}
    oval = {"x": 50, "y": 50, "radiusX": 25, "radiusY": 12.5, "rotation": 90}
    (_, upright), (_, turned), (_, oval) = regions(
        folder,
        region({**box, "rotation": 0}, "rectanglelabels"),
        region({**box, "rotation": 90}, "rectanglelabels"),
        region(oval, "ellipselabels"),
    )
    assert upright[6:12, 10:14].all() and upright.sum() == 24
    # It is rotated about its upper left corner, (10, 6), clockwise.
    assert turned[6:10, 4:10].all() and turned.sum() == 24
    assert oval[3:21, 19:21].all() and not oval[:, 23:].any()


def test_label_studio_bitmasks_and_brushes(folder):
    pixels = np.random.default_rng(0).random(SIZE) < 0.5
    alpha = np.zeros((*SIZE, 4), np.uint8)
    alpha[..., 3] = 255 * pixels
    url, code = f"data:image/png;base64,{base64_png(alpha)}", {"rle": brush(pixels)}
    found = regions(
        folder,
        region({"imageDataURL": url}, "bitmasklabels", "b"),
        region(code, "brushlabels", "c", image_rotation=90),  # only the view is rotated
    )
    assert [label for label, _ in found] == ["b", "c"]
    assert all(np.array_equal(mask, pixels) for _, mask in found)


def test_label_studio_sees_images_turned_by_exif_data(folder):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # the file has H x W, but is shown as W x H
    Image.new("RGB", (H, W)).save(folder / "images/a.png", exif=exif)
    ((_, pixels),) = regions(folder, square())
    assert pixels[:2, :4].all() and pixels.sum() == 8


def test_label_studio_joins_the_results_of_several_controls(folder):
    """<Brush> with <Labels>, and questions about single regions and the image, are joined."""
    code = {"format": "rle", "rle": brush(np.ones(SIZE, bool))}
    shape, label = region(code, "brush", id="r1"), region(code, "labels", "cat", id="r1")
    del shape["value"]["brush"]
    choice = {"id": "r1", "type": "choices", "value": {**code, "choices": ["blurred"]}}
    note = {"id": "n", "type": "textarea", "value": {"text": ["night"]}}
    relation = {"type": "relation", "from_id": "r1", "to_id": "r2", "direction": "right"}
    ((label, pixels),) = regions(folder, shape, label, choice, note, relation)
    assert label == "cat" and pixels.all()


def test_label_studio_uses_the_ground_truth_or_the_last_annotation(folder, caplog):
    def annotation(number: int, updated: str, **others) -> dict:
        dates = {"created_at": "2024-01-01T00:00:00Z", "updated_at": updated}
        return {"id": number, **dates, "result": [square(f"of {number}")], **others}

    def label_of(*annotations: dict) -> str:
        (segment,) = label_studio(folder, task(*annotations)).segments
        return segment.label

    first, second = annotation(1, "2024-05-01T00:00:00Z"), annotation(2, "2024-02-01T00:00:00Z")
    assert label_of(first, second) == "of 1"
    assert "1 task(s) with several annotations; of each, the annotation marked" in caplog.text
    cancelled = annotation(3, "2024-09-01T00:00:00Z", was_cancelled=True)
    assert label_of(first, {**second, "ground_truth": True}, cancelled) == "of 2"
    assert label_of(annotation(10, "2024-05-01T00:00:00Z"), first) == "of 10"


def test_label_studio_skips_tasks_without_annotation(folder, caplog):
    empty = task({"id": 1, "result": []})
    cancelled = task({"id": 2, "result": [square()], "was_cancelled": True}, image="none.png")
    predicted = task(image="none.png", predictions=[{"id": 3, "result": [square()]}])
    with caplog.at_level(logging.WARNING):
        assert label_studio(folder, empty, cancelled, predicted).segments == []
    assert "left out 2 of 3 tasks" in caplog.text


@pytest.mark.parametrize(
    "reference, name",
    [
        ("/data/local-files/?d=x/%2e%2e/b.png", "must be a relative path inside the given folder"),
        ("/data/local-files/?d=city/a%20b.jpg", "city/a b.jpg"),
        ("http://localhost:8080/data/local-files/?d=city/a.jpg", "city/a.jpg"),
        ("/data/local-files/?d=x/y/a.png", "y/a.png"),
        ("/data/upload/7/a1b2c3d4-a.png", "a.png"),  # its name before the upload
        ("/data/upload/7/a1b2c3d4-a.png", "a1b2c3d4-a.png"),
        ("/data/upload/7/a1b2c3d4-a.png", "7/a1b2c3d4-a.png"),
        ("https://example.org/x/a.JPEG?token=1", "x/a.JPEG"),
        ("s3://bucket/x/a.png", "x/a.png"),
        ("a text.", "one image in the task's data, found .'image'."),
        ("https://example.org/page.html", "one image"),
        ("http://[broken/a.png", "one image"),
        (["a.png"], "one image in the task's data, found .'image'."),
    ],
)
def test_label_studio_finds_the_image(folder, reference, name):
    if not name.lower().endswith(("png", "jpg", "jpeg")):
        with pytest.raises(DataFaults, match=f"export.json: task 5: .*{name}"):
            label_studio(folder, task({"id": 1, "result": []}, image=reference))
        return
    (folder / "images" / name).parent.mkdir(exist_ok=True)
    (folder / "images/a.png").rename(folder / "images" / name)
    assert label_studio(folder, task({"id": 1, "result": []}, image=reference)).name == name


def test_label_studio_tasks_with_two_images(folder):
    with pytest.raises(DataFaults, match="export.json: task 5: expected one image"):
        label_studio(folder, task({"id": 1, "result": []}) | {"data": {"a": "a.png", "b": "a.png"}})
