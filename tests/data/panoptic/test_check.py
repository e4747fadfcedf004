"""The check passes good data, and names the file and id of every fault."""

import json
import os
from functools import partial

import numpy as np
import pytest
from PIL import Image

from ocr_panoptic.data.faults import DataFaults, raise_if_any
from ocr_panoptic.data.panoptic.check import check_image, read_split
from ocr_panoptic.formats.coco_panoptic import read_panoptic_png, write_panoptic_png
from support.faults import faults_of


def check_split(split):
    content = read_split(split)
    check = partial(check_image, split, 3, False, read_panoptic_png, frozenset())
    raise_if_any([fault for image in content.images for fault in check(image)[0]])
    return content


def check(raw):
    return check_split(raw.save().split)


def faults_in(raw) -> list[str]:
    faults = faults_of(check, raw)
    assert all(str(raw.folder) in fault for fault in faults)
    return faults


def image(raw):
    return raw.content["images"][0]


def annotation(raw):
    return raw.content["annotations"][0]


def segment(raw):
    return annotation(raw)["segments_info"][0]


def test_good_data(raw):
    for key in ("area", "bbox", "iscrowd"):
        del segment(raw)[key]  # of one, and others keep theirs
    images = [(image.id, image.file_name, image.png_name) for image in check(raw).images]
    second = (5, "more/second.bmp", "more/second.png")
    assert images == [(21, "first.jpg", "first.png"), second]


def test_two_images_of_one_stem_in_different_formats(raw):
    raw.add(6, "first.tif", "first_tif.png", np.full((3, 3), 2), [{"id": 2, "category_id": 7}])
    assert [image.file_name for image in check(raw).images][-1] == "first.tif"


# Structure of the JSON.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: r.content["images"].clear(), 'the data set is empty, "images" holds no image'),
        (lambda r: r.content.pop("categories"), "not a panoptic JSON.*no list: categories"),
        (lambda r: r.content.update(images={}), "not a panoptic JSON.*no list: images"),
        (lambda r: r.content["categories"].pop(), "segment 500: category 9 is not among"),
        (lambda r: r.content["annotations"].pop(), "image 5 has no annotation"),
        (lambda r: r.content["images"].pop(), "annotation of image 5: no such image"),
        (lambda r: image(r).update(id=5), "image 5: comes twice"),
        (lambda r: image(r).update(id=-3), "image at place 0: id must be .* found -3"),
        (lambda r: image(r).update(id="21"), "image ids must be all integers or all texts"),
        (lambda r: image(r).pop("height"), "image 21: height must be .* found None"),
        (lambda r: image(r).update(width=0), "image 21: width must be .* found 0"),
        (lambda r: image(r).update(file_name=1), "image 21: file_name must be a text, found 1"),
        (lambda r: image(r).update(file_name="../a.jpg"), "image 21: file_name must lie inside"),
        (lambda r: image(r).update(file_name="more/second.bmp"), "more/second.bmp belongs to 2"),
        (lambda r: annotation(r).update(image_id=5), "annotation of image 5: comes twice"),
        (lambda r: annotation(r).update(file_name="/a.png"), "image 21: file_name must lie ins"),
        (lambda r: annotation(r).update(file_name="."), "image 21: file_name must lie inside"),
        (lambda r: annotation(r).update(file_name="more/second.png"), "PNG file more/second.png"),
        (lambda r: annotation(r).update(segments_info=None), "image 21: segments_info must be a"),
        (lambda r: segment(r).update(id=0), "segment id 0 is reserved for void"),
        (lambda r: segment(r).update(id="7"), "image 21: a segment needs an integer id"),
        (lambda r: segment(r).update(id=500), "image 21: segment id 500 is used 2 times"),
        (lambda r: segment(r).update(category_id=99), "segment 70000: category 99 is not among"),
        (lambda r: segment(r).update(category_id=[4]), r"category \[4\] is not among"),
        (lambda r: segment(r).pop("category_id"), "segment 70000: category None is not among"),
        (lambda r: image(r).update(file_name="a\0.jpg"), r"no control char.* found 'a\\x00.jpg'"),
        (lambda r: image(r).update(file_name="\x1b[31m"), r"no control char.* found '\\x1b\[31m'"),
        (lambda r: image(r).update(file_name="\ud800"), r"no control char.* found '\\ud800'"),
        (lambda r: image(r).update(file_name="a" * 256), "longer than the 255 bytes of a file's"),
        (lambda r: image(r).update(id=2**63), f"image at place 0: id must be .*found {2**63}"),
        (lambda r: image(r).update(height=10**30), "height must be a number of pixels, found 1000"),
        (lambda r: segment(r).update(iscrowd="no"), "segment 70000: iscrowd must be 0 or 1, fo"),
    ],
)
def test_fault_of_the_json(raw, spoil, message):
    spoil(raw)
    with pytest.raises(DataFaults, match=message) as error:
        check(raw)
    assert str(raw.split.annotations) in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ('{"images": [', "is not JSON"),
        ("[" * 100_000, "is not JSON .maximum recursion depth"),
        ("[" + "1" * 5000 + "]", r"is not JSON .Exceeds the limit .* has 5000 digits\)\.$"),
        ("[1, 2]", "is not a panoptic JSON.*missing or no list: images, annotations, categories"),
        (
            '{"images": [], "categories": [], "annotations": [{"id": 1, "bbox": [1, 1, 1, 1]}]}',
            "holds COCO instance annotations",
        ),
    ],
)
def test_another_file_than_annotations(raw, text, message):
    raw.split.annotations.write_text(text)
    with pytest.raises(DataFaults, match=message):
        check_split(raw.split)


def test_all_faults_of_the_json_are_reported(raw):
    segment(raw).update(id=500, category_id=99)
    image(raw).pop("height")
    raw.content["categories"][0]["name"] = None
    faults = faults_in(raw)
    assert len(faults) >= 4
    assert len(set(faults)) == len(faults)


@pytest.mark.parametrize(
    "fault", [{"color": "red"}, {"name": "\x1b[31m"}, {"isthing": 7}, {"name": ["a"] * 10}]
)
def test_a_faulty_category_is_one_fault(raw, fault):
    """Segments of a faulty category are not said to have none, nor things to be missing."""
    raw.content["categories"] = [c for c in raw.content["categories"] if c["name"] != "dog"]
    for annotation in raw.content["annotations"]:
        for segment in annotation["segments_info"]:
            segment["category_id"] = {9: 4}.get(segment["category_id"], segment["category_id"])
    raw.content["categories"][0].update(fault)  # the only thing
    (found,) = faults_in(raw)
    assert "category 4: " in found


def places(value, path=()):
    """Every place in a JSON, as a path of keys."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in inner:
        yield (*path, key)
        if isinstance(child, dict | list):
            yield from places(child, (*path, key))


@pytest.mark.slow
@pytest.mark.parametrize("junk", [None, True, -1, 2.5, "x", "", [], {}, [1], {"id": 1}])
def test_junk_anywhere_is_a_fault_or_harmless(raw, junk):
    """Whatever stands anywhere in the JSON, the answer is faults, never a crash."""
    good, refused = json.dumps(raw.content), 0
    for *path, key in list(places(raw.content)):
        raw.content = json.loads(good)
        parent = raw.content
        for step in path:
            parent = parent[step]
        parent[key] = junk
        try:
            check(raw)
        except DataFaults as error:
            assert error.faults and all(str(raw.folder) in fault for fault in error.faults)
            refused += 1
    assert refused  # not everything is harmless


@pytest.mark.parametrize("missing", ["images", "panoptic", "panoptic.json"])
def test_missing_folder_or_json(raw, missing):
    (raw.folder / missing).rename(raw.folder / "elsewhere")
    with pytest.raises(FileNotFoundError, match=f"{missing}: .*not found"):
        check_split(raw.split)


# Files.


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (
            lambda r: r.image("first.jpg").rename(r.image("first.jpeg")),
            "first.jpg: image 21 not found. There is first.jpeg: correct file_name in the JSON.",
        ),
        (lambda r: r.png("first.png").unlink(), "first.png: panoptic PNG not found."),
        (
            lambda r: os.truncate(r.image("first.jpg"), r.image("first.jpg").stat().st_size - 20),
            "first.jpg: image 21 is broken or truncated (",
        ),
        (
            lambda r: r.image("first.jpg").write_text("no image"),
            "first.jpg: image 21 is broken or truncated",
        ),
        (lambda r: os.truncate(r.png("first.png"), 50), "first.png: panoptic PNG is broken or tr"),
        (
            lambda r: write_panoptic_png(r.png("first.png"), np.zeros((5, 8), int)),
            "first.png: the PNG of image 21 has 8x5 pixels, the image 8x6 (width x height).",
        ),
        (
            lambda r: Image.new("RGB", (6, 8)).save(r.image("first.jpg")),
            "image 21 has 6x8 pixels, its annotation 8x6 (width x height).",
        ),
    ],
)
def test_files_that_do_not_fit(raw, spoil, expected):
    spoil(raw)
    (fault,) = faults_in(raw)
    assert expected in fault


@pytest.mark.parametrize(("orientation", "stored"), [(3, (8, 6)), (6, (6, 8))])
def test_exif_orientation_counts_as_detectron2_counts_it(raw, orientation, stored):
    """Detectron2 turns the image, so the PNG must fit the turned image."""
    exif = Image.Exif()
    exif[274] = orientation
    Image.new("RGB", stored).save(raw.image("first.jpg"), exif=exif)
    check(raw)
    Image.new("RGB", stored[::-1]).save(raw.image("first.jpg"), exif=exif)
    assert len(faults_in(raw)) == 1


# Pixels against JSON.


def test_ids_of_json_and_png_differ(raw):
    segment(raw)["id"] = 70001
    path = raw.png("first.png")
    assert faults_in(raw) == [
        f"{path}: segment 70000 covers 16 pixels but is not in the JSON's segments_info.",
        f"{path}: segment 70001 of the JSON has no pixel in the PNG.",
    ]


def test_id_that_no_png_can_hold(raw):
    segment(raw)["id"] = 256**3
    assert "segment 16777216: the ids of a PNG end at 16777215" in faults_in(raw)[1]


def test_area_and_box(raw):
    segment(raw).update(area=15, bbox=[0, 0, 7, 3])
    path = raw.png("first.png")
    assert faults_in(raw) == [
        f"{path}: segment 70000: area is 15 in the JSON, 16 in the PNG.",
        f"{path}: segment 70000: bbox is [0, 0, 7, 3] in the JSON, [0, 0, 8, 3] in the PNG.",
    ]


def test_one_changed_pixel_is_found(raw):
    """Every single pixel counts, whichever it is."""
    path = raw.png("more/second.png")
    good = read_panoptic_png(path)
    for row, column in np.ndindex(good.shape):
        spoiled = good.copy()
        spoiled[row, column] = 12 if good[row, column] != 12 else 9
        write_panoptic_png(path, spoiled)
        assert faults_in(raw)


def test_faults_of_all_images_are_reported(raw):
    raw.image("first.jpg").unlink()
    raw.png("first.png").unlink()
    raw.content["annotations"][1]["segments_info"][1]["area"] = 3
    assert len(faults_in(raw)) == 3


def test_void_alone_is_no_fault(raw):
    raw.add(8, "void.png", "void.png", np.zeros((3, 3), int), [])
    assert check(raw).images[-1].id == 8
