"""Categories compared with Detectron2's metadata of COCO, and faulty categories."""

import copy

import pytest
from detectron2.data import MetadataCatalog
from detectron2.data.datasets.builtin_meta import COCO_CATEGORIES

from ocr_panoptic.data.faults import DataFaults
from ocr_panoptic.data.panoptic.annotations import panoptic_metadata, parse_categories
from support.faults import faults_of

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
    assert categories == parse_categories(copy.deepcopy(entries)[::-1], "other.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": -1}, r"x\.json: category -1: the id must be an integer of at least 0"),
        ({"id": True}, r"category True: the id must be an integer"),
        ({"id": 2}, r"category id 2 is used 2 times"),
        ({"name": ""}, r"category 1: the name must be a text .in quotes.., found ''"),
        ({"name": "sky"}, r"category name 'sky' is used 2 times"),
        ({"isthing": None}, r"category 1: isthing must be 1 .* found None\. Is this a panoptic"),
        ({"isthing": 0}, r"no category has isthing 1\. Panoptic-FPN needs at least one thing"),
        ({"id": 10**30}, r"category 1000\d*: the id must be an integer of at least 0 and below 2"),
        ({"name": "a\nb"}, r"category 1: the name must have no control characters, found 'a\\nb'"),
        ({"color": [1, 2]}, r"category 1: color must be three integers 0\.\.255, found \[1, 2\]"),
    ],
)
def test_refused(change, message):
    with pytest.raises(DataFaults, match=message):
        parse_categories([{**THING, **change}, STUFF], "x.json")


def test_other_lists_of_categories():
    for entries in (None, [], {"id": 1}):
        with pytest.raises(DataFaults, match=r'x\.json: "categories" holds no category'):
            parse_categories(entries, "x.json")
    stuff = [{"id": n, "name": str(n), "isthing": 0} for n in range(2, 257)]
    parse_categories([THING, *stuff[:254]], "x.json")
    with pytest.raises(DataFaults, match=r"255 stuff categories, at most 254 fit"):
        parse_categories([THING, *stuff], "x.json")
    entries = [{**THING, "name": 3, "color": "red"}, {**STUFF, "isthing": 7}]
    assert len(faults_of(parse_categories, entries, "x")) == 3
