import logging

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as rle

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.workbench.importing.cvat import decode_runs, encode_runs, read_cvat
from ocr_panoptic.workbench.importing.shapes import ellipse
from support.faults import faults_of

H, W = 10, 12


@pytest.fixture
def folder(tmp_path):
    """A folder as CVAT exports it: ``images/a.png``, and an XML yet to be written."""
    (tmp_path / "images").mkdir()
    Image.new("RGB", (W, H)).save(tmp_path / "images" / "a.png")
    return tmp_path


def write(folder, shapes: str, image: str = f'name="a.png" width="{W}" height="{H}"') -> None:
    text = f'<annotations><version>1.1</version><meta/><image id="0" {image}>{shapes}</image>'
    (folder / "annotations.xml").write_text(f"{text}</annotations>")


def read(folder) -> list[tuple[str, list[list[int]]]]:
    (image,) = read_cvat(folder, None)
    assert (image.name, image.height, image.width) == ("a.png", H, W)
    return [(s.label, s.pixels().astype(int).tolist()) for s in image.segments]


def drawn(rows: slice, columns: slice) -> list[list[int]]:
    pixels = np.zeros((H, W), int)
    pixels[rows, columns] = 1
    return pixels.tolist()


def test_reads_masks(folder):
    # Two rows of three pixels at x 4, y 5: .XX / X.., row after row.
    write(folder, '<mask label="cat" rle="1, 3, 2" left="4" top="5" width="3" height="2"/>')
    ((label, pixels),) = read(folder)
    assert label == "cat" and np.argwhere(pixels).tolist() == [[5, 5], [5, 6], [6, 4]]


def test_reads_polygons_boxes_and_ellipses(folder, caplog):
    points = "2.00,3.00;8.00,3.00;8.00,7.00;2.00,7.00"
    write(
        folder,
        f'<polygon label="a" occluded="0" points="{points}"/>'
        '<box label="b" xtl="2.00" ytl="3.00" xbr="8.00" ybr="5.00"><attribute name="x"/></box>'
        '<box label="c" xtl="2.00" ytl="3.00" xbr="8.00" ybr="5.00" rotation="90.00"/>'
        '<ellipse label="d" cx="6.00" cy="5.00" rx="4.00" ry="2.00" rotation="30.00"/>'
        '<tag label="of the image"/>',
    )
    with caplog.at_level(logging.WARNING):
        *found, oval = read(folder)
    assert found == [
        ("a", drawn(slice(3, 7), slice(2, 8))),
        ("b", drawn(slice(3, 5), slice(2, 8))),
        ("c", drawn(slice(1, 7), slice(4, 6))),
    ]
    assert oval == ("d", rle.decode(ellipse((6, 5), (4, 2), H, W, 30)).tolist())
    assert "2 boxes are taken as filled rectangles" in caplog.text


def box(label: str, left: int, right: int, other: str = "") -> str:
    return f'<box label="{label}" xtl="{left}" ytl="0" xbr="{right}" ybr="1" {other}/>'


def test_paints_by_z_order_and_then_in_the_order_of_the_file(folder):
    shapes = box("top", 0, 1, 'z_order="3"'), box("first", 1, 2), box("second", 2, 3)
    write(folder, "".join(shapes) + box("low", 3, 4, 'z_order="-1"'))
    assert [label for label, _ in read(folder)] == ["low", "first", "second", "top"]


def test_joins_the_shapes_of_a_group(folder):
    one, other = 'group_id="1"', 'group_id="2"'
    shapes = box("cat", 0, 2, one), box("cat", 3, 4), box("cat", 5, 6, one), box("dog", 7, 8, one)
    write(folder, "".join(shapes) + box("cat", 9, 10, other))
    found = [(label, np.flatnonzero(pixels[0]).tolist()) for label, pixels in read(folder)]
    assert found == [("cat", [3]), ("cat", [0, 1, 5]), ("dog", [7]), ("cat", [9])]


def test_finds_the_images_of_a_project_by_their_subset(folder):
    (folder / "images" / "Train").mkdir()
    (folder / "images" / "a.png").rename(folder / "images" / "Train" / "a.png")
    write(folder, box("cat", 0, 2), f'name="a.png" subset="Train" width="{W}" height="{H}"')
    (image,) = read_cvat(folder, None)
    assert image.name == "Train/a.png"
    (image,) = read_cvat(folder / "annotations.xml", folder / "images")
    assert image.name == "Train/a.png"


@pytest.mark.parametrize("suffix", [".PNG", ".png", ".jpg"])
def test_finds_the_frames_of_a_video(folder, suffix):
    (folder / "images" / "a.png").rename(folder / "images" / f"frame_000000{suffix}")
    write(folder, "", f'name="frame_000000" width="{W}" height="{H}"')
    (image,) = read_cvat(folder, None)
    assert image.name == f"frame_000000{suffix}" and image.segments == []


MASK = '<mask label="a" rle="{}" left="{}" top="0" width="{}" height="2"/>'


@pytest.mark.parametrize(
    "shape, reason",
    [
        ('<polyline label="a" points="0,0;1,1"/>', r"polyline 0 \('a'\): has no area.*COCO 1.0"),
        ('<points label="a" points="0,0"/>', "has no area"),
        ('<cuboid label="a"/>', "has no area"),
        ('<skeleton label="a"><points label="b" points="0,0"/></skeleton>', "has no area"),
        ('<blob label="a"/>', "unknown kind; there are polygon, box, ellipse, mask"),
        ('<polygon points="0,0;4,0;4,4"/>', "has no label"),
        ('<polygon label="a"/>', "has no 'points'"),
        ('<polygon label="a" points="0,0;4,0;4"/>', "list of points"),
        ('<polygon label="a" points="0,0;4,x;4,4"/>', "could not convert"),
        ('<polygon label="a" points="0,0;4000,0;4,4"/>', "far outside"),
        ('<box label="a" xtl="0" ytl="0" xbr="1"/>', "has no 'ybr'"),
        ('<box label="a" xtl="0" ytl="0" xbr="1" ybr="nan"/>', "two numbers"),
        (MASK.format("1, 2", 0, 2), "2x2 pixels has runs of 3"),
        (MASK.format("9, -5", 0, 2), "has runs of 4"),
        (MASK.format("1, , 3", 0, 2), "invalid literal"),
        (MASK.format("0, 4", 11, 2), "2x2 pixels at x 11, y 0 does not lie in the image of 12x10"),
        (MASK.format("0, 4", -1, 2), "does not lie in the image"),
        (MASK.format("0, 4", 0, 10**9), "1000000000x2 pixels in an image of 12x10"),
        ('<polygon label="a" points="0,0;4,0;4,4" z_order="x"/>', "invalid literal"),
    ],
)
def test_names_shapes_that_cannot_be_read(folder, shape, reason):
    write(folder, shape + box("fine", 0, 1))
    with pytest.raises(DataFaults, match=rf"annotations.xml: image 'a.png': .*{reason}") as error:
        list(read_cvat(folder, None))
    assert len(error.value.faults) == 1


@pytest.mark.parametrize(
    "image, reason",
    [
        (f'name="b.png" width="{W}" height="{H}"', "b.png not found"),
        (f'name="../a.png" width="{W}" height="{H}"', "must lie inside the given folder"),
        (f'name="/etc/passwd" width="{W}" height="{H}"', "must lie inside the given folder"),
        (f'name="a&#9;.png" width="{W}" height="{H}"', "control characters"),
        (f'name="a.png" width="{H}" height="{W}"', "10x12 pixels, the image .* of 12x10"),
        ('name="a.png"', "height must be a number of pixels, found ''"),
        (f'width="{W}" height="{H}"', "must be a text"),
    ],
)
def test_names_images_that_do_not_fit(folder, image, reason):
    write(folder, "", image)
    with pytest.raises(DataFaults, match=reason):
        list(read_cvat(folder, None))


def test_names_the_faults_of_all_images(folder):
    Image.new("RGB", (W, H)).save(folder / "images" / "b.png")
    entry = '<image name="{}.png" width="12" height="10"><points label="x"/><box/></image>'
    text = "".join(entry.format(name) for name in "ab")
    (folder / "annotations.xml").write_text(f"<annotations>{text}</annotations>")
    assert len(faults_of(list, read_cvat(folder, None))) == 4


def test_refuses_videos_other_files_and_missing_folders(folder):
    for text, message in (
        ('<annotations><track id="0"/></annotations>', 'video. Export it as "CVAT for images 1.1"'),
        ("<annotations><version>1.1</version></annotations>", "has no image"),
        ("<annotation><object/></annotation>", "root is <annotation>"),
        ('<!DOCTYPE a [<!ENTITY x "y">]><annotations>&x;</annotations>', "xml: cannot be read as"),
        ("<annotations><image></annotations>", "xml: cannot be read as XML .mismatched tag"),
    ):
        (folder / "annotations.xml").write_text(text)
        with pytest.raises(ValueError, match=message):
            list(read_cvat(folder, None))
    with pytest.raises(FileNotFoundError, match="none: folder of images not found"):
        list(read_cvat(folder, folder / "none"))
    (folder / "images" / "a.png").unlink()
    (folder / "images").rmdir()
    with pytest.raises(ValueError, match="does not say where the images lie"):
        list(read_cvat(folder, None))


def test_runs_are_those_that_cvat_writes():
    # As in CVAT's documentation of the format: the first run is of pixels outside.
    pixels = np.array([[0, 1, 1], [1, 0, 0]], bool)
    assert encode_runs(pixels) == "1, 3, 2"
    assert encode_runs(~pixels) == "0, 1, 3, 2"
    assert encode_runs(np.zeros((2, 2), bool)) == "4"
    for shape in ((1, 1), (1, 7), (9, 1), (13, 17)):
        pixels = np.random.default_rng(0).random(shape) < 0.5
        assert np.array_equal(decode_runs(encode_runs(pixels), *shape), pixels)
