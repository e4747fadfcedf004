"""Overlaps, crowds, void and what is lost, by hand."""

import numpy as np
import pytest
from pycocotools import mask as rle

from ocr_panoptic.workbench.importing.annotated_image import AnnotatedImage, Segment
from ocr_panoptic.workbench.importing.kinds import Kinds
from ocr_panoptic.workbench.importing.painting import Losses, paint

KINDS = Kinds(things=("cat", "dog"), stuff=("sky", "grass"), ignore=("mirror",))


def segment(label: str, rows: slice, columns: slice, **what) -> Segment:
    pixels = np.zeros((6, 8), np.uint8, order="F")
    pixels[rows, columns] = 1
    return Segment(label, rle.encode(pixels), **what)


def painted(*segments: Segment, overlap: str = "order", rest: str | None = None):
    image = AnnotatedImage(None, "a.jpg", 6, 8, list(segments))
    return paint(image, KINDS, overlap, rest)


ALL = slice(None)
LARGE = segment("cat", slice(0, 4), slice(0, 6), instance=True, score=0.9)  # 24 pixels
SMALL = segment("dog", slice(2, 6), slice(4, 8), instance=True, score=0.4)  # 16, 4 shared


@pytest.mark.parametrize(
    "overlap, first, second, on_top",
    [
        ("order", LARGE, SMALL, "dog"),
        ("order", SMALL, LARGE, "cat"),
        ("area", LARGE, SMALL, "dog"),
        ("area", SMALL, LARGE, "dog"),
        ("score", LARGE, SMALL, "cat"),
        ("score", SMALL, LARGE, "cat"),
    ],
)
def test_what_covers_what(overlap, first, second, on_top):
    found = painted(first, second, overlap=overlap)
    names = {number: KINDS.classes[label] for number, label in found.labels.items()}
    assert {names[n] for n in np.unique(found.ids[2:4, 4:6])} == {on_top}
    areas = {names[n]: int((found.ids == n).sum()) for n in names}
    assert areas == ({"cat": 24, "dog": 12} if on_top == "cat" else {"cat": 20, "dog": 16})
    expected = Losses(segments=2, cut=1, covered=4, unlabelled=48 - 36, pixels=48)
    expected.things.update(["cat", "dog"])
    assert found.losses == expected


@pytest.mark.parametrize("overlap", ["area", "score"])
def test_objects_lie_on_crowds_and_crowds_on_regions(overlap):
    crowd = segment("cat", slice(0, 2), slice(0, 2), instance=True, is_crowd=True, score=1.0)
    region = segment("sky", slice(0, 1), slice(0, 1), instance=False)  # the smallest
    found = painted(LARGE, crowd, region, overlap=overlap)
    assert len(found.labels) == 1 and not found.crowds
    assert found.losses.hidden == {"cat": 1, "sky": 1}


def test_what_is_one_segment():
    """Stuff of a class; of things crowds and regions together, which are a crowd. Objects stay what
    they are, and objects of stuff are part of it."""
    found = painted(
        segment("sky", slice(0, 1), slice(0, 2), instance=None),
        segment("sky", slice(0, 1), slice(4, 6), instance=True),
        segment("cat", slice(1, 2), slice(0, 2), instance=False),
        segment("cat", slice(1, 2), slice(4, 6), instance=False),
        segment("cat", slice(2, 3), slice(0, 2), instance=None),
        segment("cat", slice(2, 3), slice(4, 6), instance=True),
        segment("cat", slice(3, 4), slice(0, 2), instance=True, is_crowd=True),
        segment("cat", slice(3, 4), slice(4, 6), instance=True, is_crowd=True),
    )
    rows = [sorted(set(found.ids[row].tolist()) - {0}) for row in range(4)]
    assert [len(row) for row in rows] == [1, 1, 2, 1] and rows[1] == rows[3]
    assert len(found.labels) == found.losses.segments == 4
    assert found.crowds == {*rows[1]}


def test_rest_and_ignored():
    mirror = segment("mirror", slice(0, 6), slice(3, 5))
    found = painted(LARGE, mirror, rest="grass")
    assert (found.ids[:, 3:5] == 0).all()
    (grass,) = (number for number, label in found.labels.items() if label == 3)
    assert int((found.ids == grass).sum()) == 48 - 12 - 16
    assert found.losses.unlabelled == 48 - 12 - 16
    assert found.losses.covered == 8
    labels = found.semantic(255)
    assert (labels[:, 3:5] == 255).all() and set(np.unique(labels)) == {0, 3, 255}


def test_what_is_lost():
    found = painted(
        segment("dog", slice(0, 0), ALL),
        segment("dog", slice(0, 2), slice(0, 2)),
        segment("sky", ALL, ALL),
        segment("sky", slice(0, 3), ALL),
    )
    assert found.losses == Losses(
        segments=2, covered=4, hidden={"dog": 1}, empty={"dog": 1}, things={"dog": 1}, pixels=48
    )
    assert set(found.labels.values()) == {2}
    both = Losses.of([found.losses, found.losses])
    assert both.hidden == {"dog": 2} and both.pixels == 96


def test_against_brute_force():
    """Random masks, pixel by pixel: the last segment that has it."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        masks = rng.random((5, 6, 8)) < 0.4
        labels = rng.choice(["cat", "dog", "sky", "grass", "mirror"], 5)
        segments = [
            Segment(label, rle.encode(np.asfortranarray(mask, np.uint8)))
            for label, mask in zip(labels, masks)
        ]
        found = painted(*segments)
        for y, x in np.ndindex(6, 8):
            owners = [place for place in range(5) if masks[place, y, x]]
            if not owners or labels[owners[-1]] == "mirror":
                assert found.ids[y, x] == 0
                continue
            label = labels[owners[-1]]
            assert KINDS.classes[found.labels[found.ids[y, x]]] == label
            if label in KINDS.things:  # an object of its own: no pixel of another has its id
                assert all(
                    found.ids[y, x] != found.ids[v, u]
                    for v, u in np.ndindex(6, 8)
                    if not masks[owners[-1], v, u]
                )
