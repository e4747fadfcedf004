"""The tables of raw labels, compared with independent sources."""

import pytest
from cityscapesscripts.helpers.labels import labels as cityscapes_labels
from detectron2.data.datasets.builtin_meta import COCO_CATEGORIES

from ocr_panoptic.data.published import tables as tables

SPACES = {
    "cityscapes": (tables.cityscapes(), 19),
    "ade20k": (tables.ade20k(), 150),
    "lip": (tables.lip(), 20),
    "pascal_context_59": (tables.pascal_context(with_background=False), 59),
    "pascal_context_60": (tables.pascal_context(with_background=True), 60),
    "coco_stuff_10k": (tables.coco_stuff(0, 0), 171),
    "coco_stuff_164k": (tables.coco_stuff(-1, 255), 171),
    "mapillary": (tables.mapillary_vistas(), 65),
}


@pytest.mark.parametrize("name", SPACES)
def test_every_class_has_a_name_a_colour_and_a_raw_label(name):
    space, num_classes = SPACES[name]
    assert len(space.classes) == len(space.colors) == num_classes
    void = set() if name == "pascal_context_60" else {255}
    assert set(space.label_map.values()) == {*range(num_classes)} | void
    assert len(set(space.classes)) == len(set(space.colors)) == num_classes


def test_cityscapes_equals_cityscapesscripts():
    space = tables.cityscapes()
    with_id = [label for label in cityscapes_labels if label.id >= 0]
    assert space.label_map == {label.id: label.trainId for label in with_id}
    evaluated = sorted((x for x in with_id if x.trainId != 255), key=lambda x: x.trainId)
    assert space.classes == tuple(label.name for label in evaluated)
    assert space.colors == tuple(label.color for label in evaluated)
    assert space.class_categories == tuple(label.category for label in evaluated)


def test_ade20k():
    space = tables.ade20k()
    assert space.label_map == {0: 255, **{raw: raw - 1 for raw in range(1, 151)}}
    assert (space.classes[0], space.classes[8], space.classes[149]) == ("wall", "window", "flag")


def test_lip_is_the_identity_and_pairs_left_with_right():
    space = tables.lip()
    assert space.label_map == {**{raw: raw for raw in range(20)}, 255: 255}
    assert space.flip_pairs == ((14, 15), (16, 17), (18, 19))
    sides = {k: name for k, name in enumerate(space.classes) if name.startswith(("Left", "Right"))}
    assert {label for pair in space.flip_pairs for label in pair} == sides.keys()
    for left, right in space.flip_pairs:
        assert sides[left].replace("Left", "Right") == sides[right]


def test_pascal_context():
    """The published code lists the same ids in another order; names are alphabetical."""
    published = [0, 2, 259, 260, 415, 324, 9, 258, 144, 18, 19, 22, 23, 397, 25, 284, 158, 159]
    published += [416, 33, 162, 420, 454, 295, 296, 427, 44, 45, 46, 308, 59, 440, 445, 31, 232]
    published += [65, 354, 424, 68, 326, 72, 458, 34, 207, 80, 355, 85, 347, 220, 349, 360, 98]
    published += [187, 104, 105, 366, 189, 368, 113, 115]
    sixty = tables.pascal_context(with_background=True)
    fifty_nine = tables.pascal_context(with_background=False)
    label_of = {raw: label for label, raw in enumerate(sorted(published))}
    assert sixty.label_map == {raw: label_of.get(raw, 0) for raw in range(460)}
    expected = {raw: label_of.get(raw, 0) - 1 for raw in range(460)}
    assert fifty_nine.label_map == {raw: 255 if k < 0 else k for raw, k in expected.items()}
    assert sixty.classes == ("background", *fifty_nine.classes)
    assert list(fifty_nine.classes) == sorted(fifty_nine.classes)


@pytest.mark.parametrize(("offset", "unlabelled"), [(0, 0), (-1, 255)])
def test_coco_stuff(offset, unlabelled):
    space = tables.coco_stuff(offset, unlabelled)
    unused = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91)
    used = [i for i in range(1, 183) if i not in unused]
    assert space.label_map == {
        **{number + offset: label for label, number in enumerate(used)},
        unlabelled: 255,
    }
    assert space.classes[0] == "person"
    assert [space.classes[k] for k in (79, 80, 170)] == ["toothbrush", "banner", "wood"]
    assert sorted(tables.COCO_STUFF_CLASSES) == list(tables.COCO_STUFF_CLASSES)
    # The stuff classes of COCO that were not merged have the same ids in COCO-Stuff.
    for category in COCO_CATEGORIES:
        if not category["isthing"] and not category["name"].endswith("-merged"):
            assert tables.coco_stuff_ids()[category["id"]] == category["name"]


def test_mapillary():
    space = tables.mapillary_vistas()
    assert space.label_map == {**{raw: raw for raw in range(65)}, 65: 255}
    # Papers and other code refer to these labels.
    names = {0: "Bird", 13: "Road", 27: "Sky", 55: "Car", 64: "Ego Vehicle"}
    assert {label: space.classes[label] for label in names} == names
