"""The check accepts good data, and names file and id of every fault, also of categories."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from detectron2.data import MetadataCatalog
from detectron2.data.datasets.builtin_meta import COCO_CATEGORIES
from PIL import Image

from ocr_panoptic.data.data_check import check_data
from ocr_panoptic.data.faults import DataFaults, raise_if_any
from ocr_panoptic.data.panoptic.annotations import panoptic_metadata, parse_categories
from ocr_panoptic.data.panoptic.check import checker
from ocr_panoptic.data.panoptic.source import PanopticSource, read_split
from ocr_panoptic.formats.coco_panoptic import id2rgb, write_panoptic_png
from support.faults import faults_of
from support.raw_pets import CAT, FIRST, SECOND


def check_split(split):
    content = read_split(split)
    check = checker(PanopticSource("raw", split))
    raise_if_any([fault for image in content.images for fault in check(image)[0]])
    return content


def check(raw):
    return check_split(raw.save().split)


def faults_in(raw) -> list[str]:
    faults = faults_of(check, raw)
    assert all(str(raw.folder) in fault for fault in faults)
    return faults


def update(kind: str, **values: object) -> Callable:
    """Return a function that sets values of the first image, annotation or segment (None: none)."""

    def change(raw) -> None:
        annotation = raw.content["annotations"][0]
        parts = {"image": raw.content["images"][0], "annotation": annotation}
        part = parts.get(kind) or annotation["segments_info"][0]
        part.update(values)
        for key in [key for key, value in values.items() if value is None]:
            del part[key]

    return change


def test_good_data(raw):
    update("segment", area=None, bbox=None, iscrowd=None)(raw)  # only this segment lacks them
    images = [(image.id, image.file_name, image.png_name) for image in check(raw).images]
    second = (5, "more/second.bmp", "more/second.png")
    assert images == [(21, "first.jpg", "first.png"), second]
    raw.add(6, "first.tif", "first_tif.png", np.full((3, 3), 2), [{"id": 2, "category_id": 7}])
    raw.add(8, "void.png", "void.png", np.zeros((3, 3), int), [])
    assert [image.file_name for image in check(raw).images][-2:] == ["first.tif", "void.png"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: r.content["images"].clear(), 'the data set is empty: "images" has no entries'),
        (lambda r: r.content.pop("categories"), "not a panoptic JSON.*a list: categories"),
        (lambda r: r.content["categories"].pop(), "segment 500: category 9 is not in"),
        (lambda r: r.content["annotations"].pop(), ".annotations. has no entry with image_id 5"),
        (lambda r: r.content["images"].pop(), 'annotation of image 5: "images" has no image'),
        (update("image", id=5), '"images": id 5 is used'),
        (update("image", id="21"), "image ids must be all integers or all strings"),
        (update("image", height=None), "image 21: height must be .* found None"),
        (update("image", width=0), "image 21: width must be .* found 0"),
        (update("image", file_name=1), "image 21: file_name must be a non-empty string, found 1"),
        (update("image", file_name="../a.jpg"), "image 21: file_name must be a rel"),
        (update("image", file_name="more/second.bmp"), "more/second.bmp belongs to 2"),
        (update("annotation", file_name="/a.png"), "image 21: file_name must be a rel"),
        (update("annotation", file_name="."), "image 21: file_name must be a rel"),
        (update("annotation", file_name="more/second.png"), "PNG file more/second.png"),
        (update("annotation", segments_info={}), "image 21: segments_info must be a"),
        (update("segment", id=0), "a segment has the id 0, which means void"),
        (update("segment", id="7"), "image 21: a segment needs an integer id in 1..16777215"),
        (update("segment", id=500), "image 21: segment id 500 is used 2 times"),
        (update("segment", category_id=99), "segment 70000: category 99 is not in"),
        (update("segment", category_id=4.0), "category_id must be an integer from 0, found 4.0"),
        (update("image", file_name="a\0.jpg"), r"not contain control char.* found 'a\\x00.jpg'"),
        (update("image", id=2**63), f'"images" entry 0: id must be .*found {2**63}'),
        (lambda r: r.content["images"].insert(0, None), '"images" entry 0: id must be .* None'),
        (lambda r: r.content["annotations"].insert(0, 5), '"annotations" entry 0'),
        (lambda r: r.content["categories"].append(5), "must be a JSON object .*, found 5"),
        (lambda r: r.content["annotations"][0]["segments_info"].append(None), "found None"),
        (update("segment", iscrowd="no"), "segment 70000: iscrowd must be 0 or 1, fo"),
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
        ('{"images": [', "not valid JSON"),
        ("[" * 100_000, "not valid JSON .maximum recursion depth"),
        ("[" + "1" * 5000 + "]", r"not valid JSON .Exceeds the limit .* has 5000 digits\)\.$"),
        ("[1, 2]", "not a panoptic JSON.*missing or not a list: images, annotations, categories"),
        (
            '{"images": [], "categories": [], "annotations": [{"id": 1, "bbox": [1, 1, 1, 1]}]}',
            "not a panoptic JSON. Its annotations are COCO instances",
        ),
    ],
)
def test_a_file_without_annotations(raw, text, message):
    raw.split.annotations.write_text(text)
    with pytest.raises(DataFaults, match=message):
        check_split(raw.split)


def test_all_faults_of_the_json_are_reported(raw):
    update("segment", id=500, category_id=99)(raw)
    update("image", height=None)(raw)
    raw.content["categories"][0]["name"] = None
    assert len({*faults_in(raw)}) >= 4


@pytest.mark.parametrize(
    "fault", [{"color": "red"}, {"name": "\x1b[31m"}, {"isthing": 7}, {"name": ["a"] * 10}]
)
def test_a_faulty_category_is_one_fault(raw, fault):
    """The segments and the things of a faulty category are not reported as further faults."""
    raw.content["categories"] = [c for c in raw.content["categories"] if c["name"] != "dog"]
    for annotation in raw.content["annotations"]:
        for segment in annotation["segments_info"]:
            segment["category_id"] = {9: 4}.get(segment["category_id"], segment["category_id"])
    raw.content["categories"][0].update(fault)  # the only thing
    (found,) = faults_in(raw)
    assert "category 4: " in found


@pytest.mark.parametrize("missing", ["images", "panoptic", "panoptic.json"])
def test_missing_folder_or_json(raw, missing):
    (raw.folder / missing).rename(raw.folder / "elsewhere")
    with pytest.raises(FileNotFoundError, match=f"{missing}: .*not found"):
        check_split(raw.split)


FILES = [
    (
        lambda r: r.image("first.jpg").rename(r.image("first.jpeg")),
        "first.jpg: image 21 not found. Found first.jpeg: correct file_name in the JSON.",
    ),
    (lambda r: r.png("first.png").unlink(), "first.png: panoptic PNG not found."),
    (
        update("annotation", file_name="first.jpg"),
        "first.jpg: panoptic PNG not found. Found first.png: correct file_name in the JSON.",
    ),
    (lambda r: os.truncate(r.image("first.jpg"), 600), "first.jpg: image 21 is broken or truncat"),
    (lambda r: os.truncate(r.png("first.png"), 50), "first.png: the panoptic PNG is broken or"),
    (
        lambda r: write_panoptic_png(r.png("first.png"), np.zeros((5, 8), int)),
        "first.png: the PNG of image 21 has 8x5 pixels, but the JSON says 8x6 (width x height).",
    ),
    (
        lambda r: Image.new("RGB", (8, 7)).save(r.image("first.jpg")),
        "image 21 has 8x7 pixels, but the JSON says 8x6 (width x height).",
    ),
]


@pytest.mark.parametrize(("spoil", "expected"), FILES)
def test_files_that_do_not_fit(raw, spoil, expected):
    spoil(raw)
    (fault,) = faults_in(raw)
    assert expected in fault


@pytest.mark.parametrize(("orientation", "stored"), [(3, (8, 6)), (6, (6, 8))])
def test_exif_orientation_counts_as_in_detectron2(raw, orientation, stored):
    exif = Image.Exif()
    exif[274] = orientation
    Image.new("RGB", stored).save(raw.image("first.jpg"), exif=exif)
    check(raw)
    Image.new("RGB", stored[::-1]).save(raw.image("first.jpg"), exif=exif)
    assert len(faults_in(raw)) == 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"id": 70001},
            ["segment 70000 covers 16 pixel(s), but the JSON's segments_info does not list it."],
        ),
        (
            {"id": 256**3},
            [
                "segment 70000 covers 16 pixel(s), but the JSON's segments_info does not list it.",
                "segment 16777216: expected an id of at most 16777215.",
            ],
        ),
        (
            {"area": 15, "bbox": [0, 0, 7, 3]},
            [
                "segment 70000: area is 15 in the JSON but 16 in the PNG. Correct the JSON, or "
                "remove this optional key.",
                "segment 70000: bbox is [0, 0, 7, 3] in the JSON but [0, 0, 8, 3] in the PNG. "
                "Correct the JSON, or remove this optional key.",
            ],
        ),
    ],
)
def test_json_and_png_differ(raw, values, expected):
    update("segment", **values)(raw)
    assert faults_in(raw) == [f"{raw.png('first.png')}: {fault}" for fault in expected]
    raw.image("first.jpg").unlink()
    raw.content["annotations"][1]["segments_info"][1]["area"] = 3
    assert len(faults_in(raw)) == len(expected) + 2  # faults of all images


def segments_of(raw) -> list[dict]:
    return raw.content["annotations"][0]["segments_info"]


@pytest.mark.parametrize(
    "change, smaller",
    [
        # Segments.ai: an entry for each region of a class of stuff
        (lambda raw: segments_of(raw).append({**segments_of(raw)[0], "area": 1}), ""),
        (lambda raw: raw.content["images"][1].update(file_name="more\\second.bmp"), ""),
        (lambda raw: raw.content["annotations"][1].update(file_name=".\\more\\second.png"), ""),
        # Datumaro: hidden segments, areas before other segments cut them, boxes without a row
        (lambda raw: segments_of(raw).append({"id": 77, "category_id": CAT}), "1 of 7"),
        (lambda raw: segments_of(raw)[0].update(area=20, bbox=[0, 0, 7, 9]), "1 of 6"),
    ],
)
def test_habits_of_tools(raw, change, smaller):
    change(raw)
    (split,) = check_data(raw.described(), workers=1).splits
    assert [split.classes[i].pixels for i in range(4)] == [8, 30, 7, 18]
    warnings = [f"{smaller} segments have fewer pixels"] if smaller else []
    assert [text.partition(" in the PNG")[0] for text in split.warnings] == warnings
    (record, _) = sorted(PanopticSource("raw", raw.split)(), key=lambda r: -r["image_id"])
    assert Path(record["file_name"]).exists() and record["hides_segments"]


def test_pngs_written_by_opencv_have_swapped_channels(raw):
    for name, ids in (("first.png", FIRST), ("more/second.png", SECOND)):
        Image.fromarray(id2rgb(ids)[..., ::-1]).save(raw.png(name))
    with pytest.raises(DataFaults, match="^1 fault .*\n.*png: red and blue are swapped"):
        check_data(raw.described(), workers=1)
    Image.fromarray(id2rgb(SECOND)).save(raw.png("more/second.png"))
    with pytest.raises(
        DataFaults, match="^1 fault .*\n.*first.png: red and .* Correct only the PNGs"
    ):
        check_data(raw.described(), workers=1)


THING = {"id": 1, "name": "cat", "isthing": 1, "color": [1, 2, 3]}
STUFF = {"id": 2, "name": "sky", "isthing": 0, "color": [4, 5, 6]}


def test_metadata_equal_detectron2_for_coco():
    theirs = MetadataCatalog.get("coco_2017_val_panoptic_separated").as_dict()
    ours = panoptic_metadata(parse_categories(list(reversed(COCO_CATEGORIES)), "coco"))
    short = [name.replace("-other", "").replace("-merged", "") for name in ours["stuff_classes"]]
    assert {**ours, "stuff_classes": short} == {key: theirs[key] for key in ours}


@pytest.mark.parametrize(
    "ids, things, stuff", [((0, 2), {0: 0}, {2: 1, -1: 0}), ((1, 0), {1: 0}, {0: 1, -1: 0})]
)
def test_category_id_zero_is_kept_apart_from_things(ids, things, stuff):
    entries = [{**THING, "id": ids[0]}, {**STUFF, "id": ids[1]}]
    metadata = panoptic_metadata(parse_categories(entries, "x.json"))
    assert metadata["thing_dataset_id_to_contiguous_id"] == things
    assert metadata["stuff_dataset_id_to_contiguous_id"] == stuff


@pytest.mark.parametrize("isthing", [0, 1])
def test_a_class_called_things_has_its_own_name(isthing):
    entries = [THING, STUFF, {"id": 3, "name": "things", "isthing": isthing}]
    metadata = panoptic_metadata(parse_categories(entries, "x.json"))
    things, stuff = ["cat", "things (thing)"], ["things", "sky", "things (stuff)"]
    assert metadata["thing_classes"] == things[: 1 + isthing]
    assert metadata["stuff_classes"] == stuff[: 3 - isthing]


def test_missing_colours_are_derived():
    entries = [{"id": n, "name": str(n), "isthing": n % 2} for n in range(1, 41)]
    entries[3]["color"] = [9, 9, 9]
    categories = parse_categories(entries, "x.json")
    assert categories[3].color == (9, 9, 9)
    assert len({category.color for category in categories}) == 40
    assert categories == parse_categories(entries[::-1], "other.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": -1}, r"x\.json: category -1: the id must be an integer from 0"),
        ({"id": True}, r"category True: the id must be an integer"),
        ({"id": "1"}, r"category '1': the id must be an integer"),
        ({"id": 2}, r"category id 2 is used 2 times"),
        ({"name": ""}, r"category 1: the name must be a non-empty string, found ''"),
        ({"name": "sky"}, r"category name 'sky' is used 2 times"),
        ({"isthing": None}, r"category 1: isthing must be 1 .* found None\. Is this a panoptic"),
        ({"isthing": 0}, r"no category has isthing 1, but Panoptic-FPN needs a thing category"),
        ({"id": 10**30}, r"category 1000\d*: the id must be an integer from 0 to 2"),
        ({"name": "a\nb"}, r"category 1: the name must not contain .*, found 'a\\nb'"),
        ({"color": [1, 2]}, r"category 1: color must be three .* found \[1, 2\]"),
    ],
)
def test_faults_of_categories(change, message):
    with pytest.raises(DataFaults, match=message):
        parse_categories([{**THING, **change}, STUFF], "x.json")


def test_other_lists_of_categories():
    for entries in (None, [], {"id": 1}):
        with pytest.raises(DataFaults, match=r'x\.json: "categories" must be a list'):
            parse_categories(entries, "x.json")
    stuff = [{"id": n, "name": str(n), "isthing": 0} for n in range(2, 257)]
    parse_categories([THING, *stuff[:254]], "x.json")
    with pytest.raises(DataFaults, match=r"255 stuff categories, expected at most 254"):
        parse_categories([THING, *stuff], "x.json")
    entries = [{**THING, "name": 3, "color": "red"}, {**STUFF, "isthing": 7}]
    assert len(faults_of(parse_categories, entries, "x")) == 3
