"""Shapes that cannot be read: each is named with its file, and the others are read."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS
from support import annotation_files as files
from support.annotation_files import SCENES, SIZE, base64_png, bitmap, brush, region

GOOD = {"a.png": SCENES["a.png"][:1]}


def add(path: Path, wrong: object, *keys: object) -> None:
    content = listed = json.loads(path.read_text())
    for key in keys:
        listed = listed[key]
    listed.append(wrong)
    files.save(path, content)


def coco(root: Path, wrong: dict) -> tuple:
    source, images = files.coco_polygons(root, GOOD)
    add(source, {"id": 7, "image_id": 1, "category_id": 1, **wrong}, "annotations")
    return source, images


def yolo(root: Path, wrong: str) -> tuple:
    source, images = files.yolo(root, GOOD)
    path = root / "labels/a.txt"
    files.save(path, f"{path.read_text()}\n{wrong}")
    return source, images


def supervisely(root: Path, wrong: dict) -> tuple:
    source, images = files.supervisely_polygons(root, GOOD)
    add(source / "ann/a.png.json", {"classTitle": "car", **wrong}, "objects")
    return source, images


def cityscapes(root: Path, wrong: object) -> tuple:
    source, images = files.cityscapes_polygons(root, GOOD)
    add(source / "a_gtFine_polygons.json", wrong, "objects")
    return source, images


def cvat(root: Path, wrong: str) -> tuple:
    source, images = files.cvat_polygons(root, GOOD)
    files.save(source, source.read_text().replace("</image>", f"{wrong}</image>"))
    return source, images


def labelme(root: Path, wrong: object) -> tuple:
    source, images = files.labelme_polygons(root, GOOD)
    known = {"label": "x", "points": ((0, 0), (2, 1))}
    add(source / "a.json", known | wrong if isinstance(wrong, dict) else wrong, "shapes")
    return source, images


def label_studio(root: Path, wrong: dict) -> tuple:
    source, images = files.label_studio_polygons(root, GOOD)
    add(source, {"id": "bad", **wrong}, 0, "annotations", 0, "result")
    return source, images


def mask(runs: str, left: int, width: int) -> str:
    return f'<mask label="a" rle="{runs}" left="{left}" top="0" width="{width}" height="2"/>'


def part(**value: object) -> dict:
    return region(value)


TRUE = base64_png(np.ones((2, 3), np.uint8))


@pytest.mark.parametrize(
    "format, write, wrong, place, reason",
    [
        ("coco", coco, {"segmentation": [[1, 2, 3]]}, "annotation 7", "cannot be read"),
        ("coco", coco, {"segmentation": {"counts": 4}}, "annotation 7", "RLE is of size None"),
        ("coco", coco, {"segmentation": "x"}, "annotation 7", "cannot be read .ValueError"),
        ("coco", coco, {"segmentation": [[0, 0, 1, 1, 1e9, 0]]}, "annotation 7", "far outside"),
        ("yolo-seg", yolo, "0 .1 .1 .2 .2", "line 2", "is a box"),
        ("yolo-seg", yolo, "4 .1 .1 .2 .2 .3 .1", "line 2", "the class 4 is not in the names"),
        ("yolo-seg", yolo, "car .1 .1 .2 .2 .3 .1", "line 2", "the class car is not in the names"),
        ("yolo-seg", yolo, "0 .1 .1 .2 .2 .3", "line 2", "cannot be read"),
        ("yolo-seg", yolo, "0 .1 .1 .2 .2 .3 nan", "line 2", "each two numbers"),
        ("yolo-seg", yolo, "0 10 10 20 20 30 10", "line 2", r"\(1200, 240\) .* far outside"),
        ("supervisely", supervisely, bitmap(np.eye(5)), "object 1", "at x 60, y 2 does not lie in"),
        ("supervisely", supervisely, bitmap(np.eye(4), origin=[-1, 0]), "object 1", "does not lie"),
        ("supervisely", supervisely, bitmap(np.eye(4), data="!"), "object 1", "cannot be read"),
        ("supervisely", supervisely, {"geometryType": "polygon"}, "object 1", "KeyError: 'points'"),
        ("cityscapes-polygons", cityscapes, {"label": "car"}, "object 1", "KeyError: 'polygon'"),
        ("cityscapes-polygons", cityscapes, {"label": "car", "polygon": [[0]]}, "object 1", "list"),
        ("cvat", cvat, '<polyline label="a" points="0,0;1,1"/>', "polyline 1 ('a')", "COCO 1.0"),
        ("cvat", cvat, '<skeleton label="a"><points/></skeleton>', "skeleton 1", "has no area"),
        ("cvat", cvat, '<blob label="a"/>', "blob 1", "unknown kind; there are polygon, box"),
        ("cvat", cvat, '<polygon points="0,0;4,0;4,4"/>', "polygon 1", "has no label"),
        ("cvat", cvat, '<polygon label="a"/>', "polygon 1", "KeyError: 'points'"),
        ("cvat", cvat, '<polygon label="a" points="0,0;4,x;4,4"/>', "polygon 1", "could not conv"),
        ("cvat", cvat, '<polygon label="a" points="0,0;4000,0;4,4"/>', "polygon 1", "far outside"),
        ("cvat", cvat, '<box label="a" xtl="0" ytl="0" xbr="1" ybr="nan"/>', "box 1", "two numb"),
        ("cvat", cvat, mask("1, 2", 0, 2), "mask 1", "2x2 pixels has runs of 3"),
        ("cvat", cvat, mask("9, -5", 0, 2), "mask 1", "has runs of 4"),
        ("cvat", cvat, mask("0, 4", 39, 2), "mask 1", "2x2 pixels at x 39, y 0 does not lie in"),
        ("labelme", labelme, "no object", "a.json", "cannot be read"),
        ("labelme", labelme, {"shape_type": "line"}, "shape 1 ('x')", "a line has no area"),
        ("labelme", labelme, {"shape_type": "cube"}, "shape 1", "unknown kind 'cube'"),
        ("labelme", labelme, {"points": [[1, "a"]]}, "shape 1", "each two numbers"),
        ("labelme", labelme, {"shape_type": "circle", "points": [[1, 1]]}, "shape 1", "has two po"),
        (
            "labelme",
            labelme,
            {"shape_type": "circle", "points": [[1, 1], [79, 1]]},
            "sh",
            "far out",
        ),
        ("labelme", labelme, {"shape_type": "polygon"}, "shape 1", "three points or more, found 2"),
        ("labelme", labelme, {"shape_type": "mask", "mask": None}, "shape 1", "cannot be read"),
        ("labelme", labelme, {"shape_type": "mask", "mask": "iVBOR"}, "shape 1", "cannot be read"),
        ("labelme", labelme, {"shape_type": "mask", "mask": TRUE}, "shape 1", "is fine"),
        (
            *("labelme", labelme, {"shape_type": "mask", "mask": base64_png(np.eye(2) > 0)}),
            *("shape 1", "a PNG of 3x2 pixels, found 2x2"),
        ),
        ("label-studio", label_studio, region({}, "keypointlabels"), "region bad", "has no area"),
        (
            "label-studio",
            label_studio,
            region({}, "polygon"),
            "region bad",
            "one label, found none",
        ),
        ("label-studio", label_studio, part(labels=["dog"]), "bad", r"found \['car', 'dog'\]"),
        ("label-studio", label_studio, region({}, item_index=1), "bad", "second or a later image"),
        ("label-studio", label_studio, part(points=[], closed=False), "bad", "is not closed"),
        ("label-studio", label_studio, part(), "region bad", "KeyError: 'points'"),
        ("label-studio", label_studio, part(points=[[0, 0], [1], [2, 2]]), "bad", "cannot be read"),
        ("label-studio", label_studio, part(points=[[0, math.nan]]), "bad", "two numbers"),
        ("label-studio", label_studio, region({"rle": [0, 0]}, "brushlabels"), "bad", "too early"),
        (
            *("label-studio", label_studio),
            *(region({"rle": brush(np.ones((40, 40)) > 0)}, "brushlabels"), "bad", "for 40x24 pix"),
        ),
        ("label-studio", label_studio, region({}, original_width=3), "bad", "is of 3x24 pixels"),
    ],
)
def test_a_shape(tmp_path, format: str, write: Callable, wrong: object, place: str, reason: str):
    (tmp_path / "images").mkdir()
    Image.new("RGB", SIZE[::-1]).save(tmp_path / "images/a.png")
    written = write(tmp_path, wrong)
    if reason == "is fine":
        (image,) = ANNOTATION_FORMATS[format].read(*written)
        assert len(image.segments) == 2
        return
    with pytest.raises(DataFaults, match=reason) as error:
        list(ANNOTATION_FORMATS[format].read(*written))
    (fault,) = error.value.faults
    assert fault.startswith(str(tmp_path)) and place in fault


def changed(root: Path, **changes: object) -> tuple:
    source, images = files.coco_polygons(root, GOOD)
    content = json.loads(source.read_text())
    for key, change in changes.items():
        content[key] = [{**content[key][0], **change}] if isinstance(change, dict) else change
    return files.save(source, content), images


TWO = [{"id": 3, "name": "a"}, {"id": 3, "name": "b"}]


@pytest.mark.parametrize(
    "format, write, reason",
    [
        (
            "coco",
            lambda r: changed(r, images={"id": 9}),
            'annotation 1: image 1 is not in "images"',
        ),
        ("coco", lambda r: changed(r, images={"width": None}), "does not say the image's width"),
        ("coco", lambda r: changed(r, images={"file_name": "a\x1b[2J.png"}), "control characters"),
        ("coco", lambda r: changed(r, annotations={"category_id": 4}), 'category 4 is not in "cat'),
        ("coco", lambda r: changed(r, annotations={"segmentation": []}), "Boxes alone do not say"),
        ("coco", lambda r: changed(r, annotations={"segments_info": []}), "is a panoptic JSON"),
        ("coco", lambda r: changed(r, annotations={"image_id": None}), "image None is not in"),
        ("coco", lambda r: changed(r, categories=TWO), "two categories have the id 3"),
        ("coco", lambda r: changed(r, categories=[{"id": 1}]), "KeyError: 'name'"),
        ("coco", lambda r: changed(r, categories=3), "missing or not a list: categories"),
        ("coco", lambda r: (changed(r)[0], None), "give their folder after it"),
        ("voc", lambda r: (files.save(r / "x/y/train.txt", "\n"), None), "names no image"),
        ("voc", lambda r: (r, None), "SegmentationClass: not found. Give the folder that holds"),
        (
            "yolo-seg",
            lambda r: (files.save(r / "d.yaml", "train: x"), None),
            "expected names: with",
        ),
        (
            "yolo-seg",
            lambda r: (files.save(r / "d.yaml", "names: [a, a]"), None),
            "a comes 2 times",
        ),
        (
            "yolo-seg",
            lambda r: (files.save(r / "d.yaml", "names: [a]"), None),
            "no folder of image",
        ),
        (
            *("yolo-seg", lambda r: (files.save(r / "d.yaml", "names: [a]\ntrain: z"), None)),
            "z is not a folder or list",
        ),
        (
            *(
                "yolo-seg",
                lambda r: (files.save(r / "b/d.yaml", "names: [a]\ntrain: ../images"), 0),
            ),
            "leads out of the folder of d.yaml",
        ),
        (
            "yolo-seg",
            lambda r: (files.save(r / "d.yaml", "names: [a]\ntrain: images"), None),
            "none",
        ),
        ("supervisely", lambda r: (r, r), "give no folder of images"),
        ("supervisely", lambda r: (r, None), "meta.json: not found. Give the folder of a project"),
        ("cityscapes", lambda r: (r, r), "no file that ends in _instanceIds.png"),
        (
            "cvat",
            lambda r: (files.save(r / "a.xml", "<annotations/>"), r),
            "has no image. Is it an",
        ),
        (
            *(
                "cvat",
                lambda r: (files.save(r / "a.xml", "<annotations><track/></annotations>"), r),
            ),
            'tracks of a video. Export it as "CVAT for images 1.1"',
        ),
        ("cvat", lambda r: (files.save(r / "a.xml", "<annotation/>"), r), "root is <annotation>"),
        (
            *("cvat", lambda r: (files.save(r / "a.xml", '<!DOCTYPE a [<!ENTITY x "y">]><a/>'), r)),
            "a.xml: cannot be read as XML",
        ),
        ("labelme", lambda r: (files.save(r / "a.json", "{}").parent, r), "not a file of LabelMe"),
        (
            *("labelme", lambda r: (files.save(r / "a.xml", "<annotation/>").parent, None)),
            "no file that ends in .json. Its XML is of another, older LabelMe",
        ),
        (
            "labelme",
            lambda r: (
                files.save(r / "l/a.json", {"shapes": [], "imagePath": "../a"}).parent,
                None,
            ),
            "'../a' lies outside .* Give the folder of the images",
        ),
        (
            "label-studio",
            lambda r: (files.save(r / "a.json", {"tasks": []}), r),
            'Export as "JSON"',
        ),
        (
            *("label-studio", lambda r: (files.save(r / "a.json", [{"id": 1, "label": []}]), r)),
            'not as "JSON-MIN"',
        ),
        (
            "label-studio",
            lambda r: (files.save(r / "a.json", [{"data": {}, "annotations": []}]), r),
            "every task is without annotation",
        ),
    ],
)
def test_a_source(tmp_path, format: str, write: Callable, reason: str):
    (tmp_path / "images").mkdir()
    Image.new("RGB", SIZE[::-1]).save(tmp_path / "images/a.png")
    with pytest.raises((ValueError, FileNotFoundError), match=reason) as error:
        list(ANNOTATION_FORMATS[format].read(*write(tmp_path)))
    assert str(tmp_path) in str(error.value)
