"""The message about unreadable shapes names each with its file; other shapes are read."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import ocr_panoptic
from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.errors import UserError
from ocr_panoptic.workbench.importing.formats import ANNOTATION_FORMATS
from support import annotation_files as files
from support.annotation_files import SCENES, WRITERS, base64_png, bitmap, brush, region

GOOD = {"a.png": SCENES["a.png"][:1]}


def add(path: Path, wrong: object, *keys: object) -> None:
    content = listed = json.loads(path.read_text())
    for key in keys:
        listed = listed[key]
    listed.append(wrong)
    files.save(path, content)


def write(root: Path, format: str, wrong: object) -> tuple:
    writers = {**dict(WRITERS), "via": files.via_polygons}
    source, images = writers[format](root, GOOD)
    match format:
        case "coco":
            add(source, {"id": 7, "image_id": 1, "category_id": 1, **wrong}, "annotations")
        case "yolo-seg":
            path = root / "labels/a.txt"
            files.save(path, f"{path.read_text()}\n{wrong}")
        case "supervisely":
            add(source / "ann/a.png.json", {"classTitle": "car", **wrong}, "objects")
        case "cityscapes-polygons":
            add(source / "a_gtFine_polygons.json", wrong, "objects")
        case "cvat":
            files.save(source, source.read_text().replace("</image>", f"{wrong}</image>"))
        case "labelme":
            known = {"label": "x", "points": ((0, 0), (2, 1))}
            wrong = known | wrong if isinstance(wrong, dict) else wrong
            add(source / "a.json", wrong, "shapes")
        case "via":
            wrong = {"shape_attributes": wrong, "region_attributes": {"class": "car"}}
            add(source, wrong, "_via_img_metadata", "a.png99", "regions")
        case "label-studio":
            add(source, {"id": "bad", **wrong}, 0, "annotations", 0, "result")
    return source, images


def mask(runs: str, left: int, width: int) -> str:
    return f'<mask label="a" rle="{runs}" left="{left}" top="0" width="{width}" height="2"/>'


def part(**value: object) -> dict:
    return region(value)


EMPTY = {"images": [], "annotations": [], "categories": []}
VIA_REGIONS = [{"shape_attributes": {}, "region_attributes": {"kind": "a", "colour": "b"}}]
TRUE = base64_png(np.ones((2, 3), np.uint8))
TURNED = [[1, 4], [4, 1], [8, 5], [5, 8]]


@pytest.mark.parametrize(
    "format, wrong, place, reason",
    [
        ("coco", {"segmentation": [[1, 2, 3]]}, "annotation 7", "odd number of values, 3"),
        ("coco", {"segmentation": {"counts": 4}}, "annotation 7", "RLE has size None"),
        ("coco", {"segmentation": "xy"}, "annotation 7", "cannot be read .ValueError"),
        ("coco", {"segmentation": [[0, 0, 1, 1, 1e9, 0]]}, "annotation 7", "far outside"),
        ("yolo-seg", "4 .1 .1 .2 .2 .3 .1", "line 2", "has no class 4"),
        ("yolo-seg", "car .1 .1 .2 .2 .3 .1", "line 2", "has no class car"),
        ("yolo-seg", "0 .1 .1 .2 .2 .3", "line 2", "odd number of values, 5"),
        ("yolo-seg", "0 .1 .1 .2 .2 .3 nan", "line 2", "two numbers each"),
        ("yolo-seg", "0 10 10 20 20 30 10", "line 2", r"\(400, 240\) .* far outside"),
        ("supervisely", bitmap(np.eye(5)), "object 1", "at x 60, y 2 extends beyond"),
        ("supervisely", bitmap(np.eye(4), origin=[-1, 0]), "object 1", "extends beyond"),
        ("supervisely", bitmap(np.eye(4), origin=[0, -1]), "object 1", "extends beyond"),
        ("supervisely", bitmap(np.eye(4), data="!"), "object 1", "cannot be read"),
        ("supervisely", {"geometryType": "polygon"}, "object 1", "the key 'points' is missing"),
        ("cityscapes-polygons", {"label": "car"}, "object 1", "the key 'polygon' is missing"),
        ("cityscapes-polygons", {"label": "car", "polygon": [[0]]}, "object 1", "list"),
        ("cvat", '<blob label="a"/>', "blob 1", "unknown shape blob; expected polygon"),
        ("cvat", '<polygon points="0,0;4,0;4,4"/>', "polygon 1", "'label'"),
        ("cvat", '<polygon label="a"/>', "polygon 1", "the key 'points' is missing"),
        ("cvat", '<polygon label="a" points="0,0;4,x;4,4"/>', "polygon 1", "two numbers"),
        ("cvat", '<polygon label="a" points="0,0;4000,0;4,4"/>', "polygon 1", "far outside"),
        ("cvat", '<box label="a" xtl="0" ytl="0" xbr="1" ybr="nan"/>', "box 1", "two numb"),
        ("cvat", mask("1, 2", 0, 2), "mask 1", "4 pixels, but add up to 3. Export"),
        ("cvat", mask("9, -5", 0, 2), "mask 1", "must be non-negative .*but include -5. Export"),
        ("cvat", '<box label="a" xtl="0" ytl="0" xbr="1" ybr="1" rotation="nan"/>', "box 1", "two"),
        ("cvat", mask("0, 4", 39, 2), "mask 1", "2x2 pixels at x 39, y 0 extends beyond"),
        ("labelme", "no object", "a.json", "cannot be read"),
        ("labelme", {"shape_type": "cube"}, "shape 1", "unknown shape_type 'cube'"),
        ("labelme", {"shape_type": "rotation", "points": TURNED}, "shape 1", "is fine"),
        ("labelme", {"points": [[1, "a"], [2, 2], [3, 1]]}, "shape 1", "two numbers each"),
        ("labelme", {"shape_type": "circle", "points": [[1, 1]] * 3}, "shape 1", "two points"),
        ("labelme", {"shape_type": "circle", "points": [[1, 1], [79, 1]]}, "sh", "far out"),
        ("labelme", {"shape_type": "mask", "mask": None}, "shape 1", "cannot be read"),
        ("labelme", {"shape_type": "mask", "mask": "iVBOR"}, "shape 1", "cannot be read"),
        ("labelme", {"shape_type": "mask", "mask": TRUE}, "shape 1", "is fine"),
        (
            *("labelme", {"shape_type": "mask", "mask": base64_png(np.eye(2) > 0)}),
            *("shape 1", "a mask PNG of 3x2 pixels, found 2x2"),
        ),
        ("label-studio", region({}, "cuboidlabels"), "region bad", "region type cuboidlabels"),
        ("label-studio", region({}, "polygon"), "region bad", "label for the region, found none"),
        ("label-studio", part(labels=["dog"]), "bad", r"found \['car', 'dog'\]"),
        ("label-studio", region({}, item_index=1), "bad", "a later image"),
        ("label-studio", part(points=[], closed=False), "bad", "is not closed"),
        ("label-studio", part(), "region bad", "the key 'points' is missing"),
        ("label-studio", part(points=[[0, 0], [1], [2, 2]]), "bad", "cannot be read"),
        ("label-studio", part(points=[[0, math.nan]]), "bad", "two numbers"),
        ("label-studio", region({"rle": [0, 0]}, "brushlabels"), "bad", "is truncated"),
        (
            "label-studio",
            *(region({"rle": brush(np.ones((40, 40)) > 0)}, "brushlabels"), "bad", "for 40x24 pix"),
        ),
        ("label-studio", region({}, original_width=3), "bad", "3x24 pixels"),
    ],
)
def test_a_shape(folder, format: str, wrong: object, place: str, reason: str):
    written = write(folder, format, wrong)
    if reason == "is fine":
        (image,) = ANNOTATION_FORMATS[format].read(*written)
        assert len(image.segments) == 2
        return
    with pytest.raises(DataFaults, match=reason) as error:
        list(ANNOTATION_FORMATS[format].read(*written))
    (fault,) = error.value.faults
    assert fault.startswith(str(folder)) and place in fault


@pytest.mark.parametrize(
    "format, shape, kind",
    [
        ("cvat", '<polyline label="a" points="0,0;1,1"/>', "polyline"),
        ("cvat", '<skeleton label="a"><points/></skeleton>', "skeleton"),
        ("cvat", '<points label="a" points="0,0"/>', "points"),
        ("cvat", '<ellipse label="a" cx="3" cy="3" rx="0" ry="2"/>', ""),
        ("labelme", {"shape_type": "line"}, "line"),
        ("labelme", {"shape_type": "polygon"}, "points"),
        ("labelme", {"shape_type": "circle", "points": [[1, 1]]}, "points"),
        ("label-studio", region({}, "keypointlabels"), "keypoint"),
        ("label-studio", region({"vertices": []}, "vectorlabels"), "vector"),
        ("supervisely", {"geometryType": "line", "points": {}}, "line"),
        ("coco", {"segmentation": []}, ""),
        ("yolo-seg", "0 .1 .1 .2 .2", "box"),
        ("via", {"name": "polyline", "all_points_x": [0, 1], "all_points_y": [0, 1]}, "polyline"),
        ("via", {"name": "ellipse", "cx": 9, "cy": 9, "rx": 0, "ry": 3, "theta": 0}, ""),
    ],
)
def test_a_shape_without_area(folder, format, shape, kind):
    """It is left out, and counted."""
    (image,) = ANNOTATION_FORMATS[format].read(*write(folder, format, shape))
    assert [*image.left_out] == [kind] * bool(kind)
    assert [bool(segment.pixels().any()) for segment in image.segments][:2] in (
        [True],
        [True, False],
    )


BOX = {"x": 5, "y": 5, "width": 20, "height": 20}
CORNERS = [[2, 2], [9, 2], [9, 8], [2, 8]]


@pytest.mark.parametrize(
    "format, shape, is_box",
    [
        ("cvat", '<box label="a" xtl="1" ytl="1" xbr="4" ybr="5"/>', True),
        ("labelme", {"shape_type": "rectangle", "points": CORNERS[::2]}, True),
        ("labelme", {"shape_type": "oriented_rectangle", "points": CORNERS}, True),
        ("labelme", {"shape_type": "polygon", "points": CORNERS}, False),
        ("label-studio", region(BOX, "rectanglelabels"), True),
        ("coco", {"segmentation": [sum(CORNERS, [])]}, True),
        ("coco", {"segmentation": [[2, 2, 9, 2, 9, 8, 2, 9]]}, False),
        ("yolo-seg", "0 .1 .1 .2 .1 .2 .3 .1 .3 .1 .1", True),
        ("yolo-seg", "0 .1 .1 .2 .1 .2 .3", False),
    ],
)
def test_a_box(folder, format, shape, is_box):
    (image,) = ANNOTATION_FORMATS[format].read(*write(folder, format, shape))
    assert image.segments[-1].is_box == is_box


TWO = [{"id": 3, "name": "a"}, {"id": 3, "name": "b"}]


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"images": {"width": 41}}, "41x24 pixels, but the image"),
        ({"images": {"file_name": "a\x1b[2J.png"}}, "control characters"),
        ({"annotations": {"category_id": 4}}, "annotation 1: .* 4 is not in .cat"),
        ({"annotations": {"segmentation": []}}, "Boxes do not show"),
        ({"annotations": {"segments_info": []}}, "panoptic JSON needs no import"),
        ({"categories": TWO}, "two categories have the id 3"),
        ({"categories": [{"id": 1}]}, "the key 'name' is missing"),
        ({"categories": 3}, "not a COCO instance JSON.*categories"),
    ],
)
def test_a_coco_json(folder, changes, reason):
    source, images = files.coco_polygons(folder, GOOD)
    content = json.loads(source.read_text())
    for key, change in changes.items():
        content[key] = [{**content[key][0], **change}] if isinstance(change, dict) else change
    files.save(source, content)
    with pytest.raises(DataFaults, match=f"{source}: .*{reason}"):
        list(ANNOTATION_FORMATS["coco"].read(source, images))


DOCTYPE = '<!DOCTYPE a [<!ENTITY x "y">]><a/>'
TRACK = "<annotations><track/></annotations>"


@pytest.mark.parametrize(
    "format, file, content, reason",
    [
        ("coco", "a.json", EMPTY, "no folder of images is given. Add it after this path"),
        ("coco", "a.json", {}, "not a COCO instance JSON"),
        ("voc", None, "", "SegmentationClass: folder not found. Give the folder that contains"),
        ("yolo-seg", "d.yaml", "train: x", "expected the key .names."),
        ("yolo-seg", "d.yaml", "names: [a, a]", "the class a is listed 2 times"),
        ("yolo-seg", "d.yaml", "names: [a]", "lists no image folders"),
        ("yolo-seg", "d.yaml", "names: [a]\ntrain: z", "z is neither a folder nor a list"),
        ("yolo-seg", "d.txt", "", "the list of images is empty"),
        ("yolo-seg", "b/d.yaml", "names: [a]\ntrain: ../images", "is outside the folder of d.y"),
        ("yolo-seg", "d.yaml", "names: [a]\ntrain: images", "found 1 image\\(s\\), but no label"),
        ("cityscapes", "images/a_gtFine.png", "", "no folder of images is given"),
        ("cvat", "a.xml", "<annotations/>", 'contains no images. Export it as "CVAT for images'),
        ("cvat", "a.xml", TRACK, 'video tracks. Export it as "CVAT for images 1.1"'),
        ("cvat", "a.xml", "<annotation/>", "<annotation> contains no images"),
        ("cvat", "a.xml", DOCTYPE, "a.xml: not valid XML"),
        ("labelme", "l/a.json", "{}", "not a LabelMe file"),
        ("via", "a.json", {"tasks": {}}, '"as COCO" and give --from coco'),
        ("via", "a.json", {"a": {"filename": "a.png", "regions": VIA_REGIONS}}, "which attribute"),
        ("label-studio", "a.json", {"tasks": []}, 'export "JSON"'),
        ("label-studio", "a.json", [{"id": 1, "label": []}], 'not "JSON-MIN"'),
        ("coco", "a.json", {"item": {}, "annotations": []}, r"from V7 .Darwin.\. Export COCO"),
        ("coco", "a.json", {"type": "x", "features": []}, "from QuPath"),
        ("coco", "a.json", [{"image_id": 1, "category_id": 1}], "export from pycocotools"),
        ("coco", "a.json", '{"source-ref": "s3://a"}\n{"source-ref": "s3://b"}', "SageMaker"),
        ("coco", "a.json", '{"a": 1}\n{"a": 2}', "not valid JSON .Extra data"),
        ("coco", "a.json", [{"data": {}, "annotations": []}], "import --from label-studio"),
        ("via", "a.json", [{"label_hash": "x", "data_units": {}}], "from Encord. Export COCO"),
        ("labelme", "l/a.json", [{"externalId": "a", "labels": []}], "an export from Kili"),
        ("via", "a.json", {"_via_img_metadata": {}}, "not a VIA 1 or 2 JSON"),
        ("label-studio", "a.json", [{"data": {}, "annotations": []}, {}], "not a list of tasks"),
        ("coco", "a.json", {"_via_img_metadata": {}}, "with ocr-panoptic import --from via"),
        ("coco", "a.json", '{"image": "a.jpg", "prefix": "a", "suffix": "b"}\n{}', "PaliGemma"),
    ],
)
def test_a_source(folder, format, file, content, reason):
    source = files.save(folder / file, content) if file else folder
    if file == "d.txt":
        source = files.save(folder / "d.yaml", "names: [a]\ntrain: d.txt")
    source = source.parent if format in ("labelme", "cityscapes") else source
    images = folder / "images" if format in ("cvat", "label-studio", "via") else None
    with pytest.raises((ValueError, FileNotFoundError), match=reason) as error:
        list(ANNOTATION_FORMATS[format].read(source, images))
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{images: [], annotations: 1, categories: []}", "import --from coco"),
        ("{images: [], annotations: [{segments_info: 0}], categories: []}", "this is a panoptic"),
        ("{names: [a], nc: 1, train: x, val: y}", "--from yolo-seg"),
        ("{imagePath: a.png, shapes: []}", "LabelMe. Import its folder with ocr-panoptic"),
        ("[{id: 1, data: {}, annotations: []}]", "--from label-studio"),
        ("{a.png9: {filename: a.png, regions: []}}", "--from via"),
        ("[{type: bbox, classId: 7, probability: 100, points: {}}]", "SuperAnnotate. Export COCO"),
        ("{readme: x, label_map: {}, export_info: {}, 5: {}}", "Diffgram. Export COCO"),
        ("{info: {}, images: [], annotations: [{image_id: 1, caption: a}]}", "captions. Captions"),
        ("{openlabel: {metadata: {}, frames: {}}}", "OpenLABEL. Export COCO"),
        ("<annotations/>", "--from cvat"),
        ("{pages: []}", "import --from FORMAT"),
    ],
)
def test_an_annotation_file_that_is_named_as_a_data_file(tmp_path, content, message):
    """The message names the file's format."""
    path = tmp_path / ("a.xml" if "<" in content else "a.yaml")
    path.write_text(content)
    with pytest.raises(UserError, match=f"^{path}: .*{message}"):
        ocr_panoptic.check(path)
