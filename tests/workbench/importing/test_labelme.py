import json

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.workbench.importing.labelme import read_labelme
from support.faults import faults_of
from support.tool_exports import EXPORTS, IMAGES

H, W = 10, 12


@pytest.fixture
def folder(tmp_path):
    """Two images; their JSON is yet to be written."""
    (tmp_path / "b").mkdir()
    for name in ("a.png", "b/a.png"):
        Image.new("RGB", (W, H)).save(tmp_path / name)
    return tmp_path


def write(path, *shapes: dict, **others: object) -> None:
    known = {"imagePath": "a.png", "imageData": None, "imageHeight": H, "imageWidth": W}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": "5.5.0", **known, "shapes": shapes, **others}))


def shape(label: str = "x", kind: str = "rectangle", points=((0, 0), (2, 1)), **others) -> dict:
    return {"label": label, "shape_type": kind, "points": points, "group_id": None, **others}


def test_reads_other_shapes_as_labelme_draws_them():
    (image,) = read_labelme(EXPORTS / "labelme_shapes", IMAGES)
    assert [segment.label for segment in image.segments] == ["grass", "ball", "crate", "tent"]
    theirs = np.asarray(Image.open(EXPORTS / "labelme_shapes" / "shapes.png"))
    ours = np.zeros_like(theirs)
    for number, segment in enumerate(image.segments, 1):
        ours[segment.pixels()] = number
    assert np.array_equal(ours, theirs)


def test_shapes_have_the_pixels_on_their_borders(folder):
    write(
        folder / "a.json",
        shape("r", "rectangle", [[8, 6], [2, 3]]),
        shape("c", "circle", [[5, 5], [5, 2]]),
        shape("p", None, [[0, 0], [3, 0], [3, 2], [0, 2]]),
    )
    (image,) = read_labelme(folder, None)
    box, circle, polygon = (segment.pixels() for segment in image.segments)
    assert box[3:7, 2:9].all() and box.sum() == 28
    assert polygon[:3, :4].all() and polygon.sum() == 12
    assert circle[2:9, 5].all() and circle[5, 2:9].all() and not circle[2, 2]
    assert circle[2:9, 2:9].sum() == circle.sum()


def test_joins_the_shapes_of_a_group(folder):
    def part(label: str, left: int, group: int | None) -> dict:
        return shape(label, points=[[left, 0], [left, 0]], group_id=group)

    parts = part("a", 0, 1), part("a", 2, None), part("a", 4, 1), part("b", 6, 1), part("a", 8, 0)
    write(folder / "a.json", *parts)
    (image,) = read_labelme(folder, None)
    found = [(s.label, np.flatnonzero(s.pixels()[0]).tolist()) for s in image.segments]
    assert found == [("a", [2]), ("a", [0, 4]), ("b", [6]), ("a", [8])]


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
def test_finds_the_image(folder, json_name, image_path, images, name):
    write_to = folder / json_name
    write_to.parent.mkdir(parents=True, exist_ok=True)
    write(write_to, shape(), imagePath=image_path)
    source = folder / "labels" if json_name.startswith("labels") else folder
    images = None if images is None else folder / images
    (image,) = read_labelme(source, images)
    assert image.name == name
    assert image.file.samefile((images or folder) / name)


@pytest.mark.parametrize(
    "others, reason",
    [
        (dict(imagePath="c.png"), "c.png not found"),
        (dict(imagePath="../a.png"), r"'../a.png' lies outside .* Give the folder of the images"),
        (dict(imagePath="/etc/passwd"), "lies outside"),
        (dict(imagePath="a\n.png"), "control characters"),
        (dict(imagePath="c.png", imageData="abcd"), "c.png not found.*docs/imports.md"),
        (dict(imageHeight=W, imageWidth=H), "10x12 pixels, the image .* of 12x10"),
        (dict(shapes=None), "is no file of LabelMe"),
        (dict(imagePath=None), "is no file of LabelMe"),
    ],
)
def test_names_images_that_do_not_fit(folder, others, reason):
    write(folder / "a.json", **others)
    with pytest.raises(DataFaults, match=f"a.json: .*{reason}"):
        list(read_labelme(folder, None))


PNG = "iVBORw0KGgo="


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ("no object", "has no label"),
        ({"shape_type": "polygon"}, "has no label"),
        (shape(kind="line"), r"\('x'\): a line has no area"),
        (shape(kind="point", points=[[1, 1]]), "a point has no area"),
        (shape(kind="linestrip"), "a linestrip has no area"),
        (shape(kind="cube"), "unknown kind 'cube'"),
        (shape(points=None), "points must be a list of"),
        (shape(points=[[1, "a"]]), "points must be a list of"),
        (shape(points=[[1, 1], [2]]), "points must be a list of"),
        (shape(points=[[1, 1]]), "has two points, found 1"),
        (shape(points=[[1, 1], [1e7, 2]]), "far outside"),
        (shape(kind="circle", points=[[1, 1], [1, 1e7]]), "far outside"),
        (shape(kind="polygon"), "three points or more, found 2"),
        (shape(group_id="one"), "group_id must be an integer"),
        (shape(kind="mask", mask=None), "PNG of 3x2 pixels in base64"),
        (shape(kind="mask", mask=PNG), "PNG of 3x2 pixels in base64"),
        (shape(kind="mask", points=[[0, 0], [float("nan"), 1]], mask=PNG), "two numbers"),
        (shape(kind="mask", points=[[0, 0], [1e300, 1]], mask=PNG), "far outside"),
        (shape(kind=["polygon"]), "unknown kind"),
        (shape(points=[[10**400, 0], [1, 1]]), "points must be a list of"),
        (shape(kind="mask", points=[[5, 5], [1, 1]], mask=PNG), "PNG of -3x-3 pixels"),
    ],
)
def test_names_shapes_that_cannot_be_read(folder, wrong, reason):
    write(folder / "a.json", shape(), wrong)
    with pytest.raises(DataFaults, match=f"a.json: shape 1.*{reason}") as error:
        list(read_labelme(folder, None))
    assert len(error.value.faults) == 1


def test_names_the_faults_of_all_files(folder):
    write(folder / "a.json", shape(kind="point"), shape(kind="line"))
    write(folder / "b" / "a.json", imagePath="none.png")
    (folder / "c.json").write_text("[" * 100_000)
    assert len(faults_of(list, read_labelme(folder, None))) == 4
    with pytest.raises(FileNotFoundError, match="none: folder"):
        list(read_labelme(folder, folder / "none"))
    with pytest.raises(FileNotFoundError, match="none: folder"):
        list(read_labelme(folder / "none", None))
