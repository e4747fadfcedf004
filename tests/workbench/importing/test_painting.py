"""Overlaps, crowds, void and losses, worked out by hand."""

import numpy as np
import pytest
from pycocotools import mask as rle

from ocr_panoptic.workbench.importing.annotated_image import AnnotatedImage, Segment
from ocr_panoptic.workbench.importing.kinds import Kinds
from ocr_panoptic.workbench.importing.painting import paint

KINDS = Kinds(things=("cat", "dog"), stuff=("sky", "grass"), ignore=("mirror",))


def segment(label: str, rows: slice, columns: slice, **what) -> Segment:
    pixels = np.zeros((6, 8), np.uint8, order="F")
    pixels[rows, columns] = 1
    return Segment(label, rle.encode(pixels), **what)


def painted(*segments: Segment, **options: object):
    return paint(AnnotatedImage(None, "a.jpg", 6, 8, list(segments)), KINDS, **options)


ALL = slice(None)
LARGE = segment("cat", slice(0, 4), slice(0, 6), instance=True)  # 24 pixels
SMALL = segment("dog", slice(2, 6), slice(4, 8), instance=True)  # 16 pixels, 4 shared


@pytest.mark.parametrize(
    "smaller_on_top, first, second, on_top",
    [
        (False, LARGE, SMALL, "dog"),
        (False, SMALL, LARGE, "cat"),
        (True, LARGE, SMALL, "dog"),
        (True, SMALL, LARGE, "dog"),
    ],
)
def test_order_of_painting(smaller_on_top, first, second, on_top):
    found = painted(first, second, smaller_on_top=smaller_on_top)
    names = {number: KINDS.classes[label] for number, label in found.labels.items()}
    areas = {names[n]: int((found.ids == n).sum()) for n in names}
    assert areas == ({"cat": 24, "dog": 12} if on_top == "cat" else {"cat": 20, "dog": 16})
    assert found.counts == {
        **{"segments": {"cat": 1, "dog": 1}, "things": {"cat": 1, "dog": 1}},
        **{"cut": {"dog" if on_top == "cat" else "cat": 1}},
        "pixels": {"all": 48, "unlabelled": 48 - 36},
    }


def test_objects_lie_on_crowds_and_crowds_on_regions():
    crowd = segment("cat", slice(0, 2), slice(0, 2), instance=True, is_crowd=True)
    region = segment("sky", slice(0, 1), slice(0, 1), instance=True)
    found = painted(LARGE, crowd, region, smaller_on_top=True)
    assert len(found.labels) == 1 and not found.crowds
    assert found.counts["hidden"] == {"cat": 1, "sky": 1}


def test_segments_that_become_one():
    """
    A class of stuff is a segment; objects of a stuff class join it.

    Crowds and regions of a class of things are one crowd; its objects stay separate.
    """
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
    assert len(found.labels) == found.counts["segments"].total() == 4
    assert found.crowds == {*rows[1]}
    assert (found.counts["things"], found.counts["crowds"]) == ({"cat": 6}, {"cat": 4})


def test_rest_and_ignored():
    mirror = segment("mirror", slice(0, 6), slice(3, 5))
    found = painted(LARGE, mirror, rest="grass")
    assert (found.ids[:, 3:5] == 0).all()
    (grass,) = (number for number, label in found.labels.items() if label == 3)
    assert int((found.ids == grass).sum()) == 48 - 12 - 16 == found.counts["pixels"]["unlabelled"]
    labels = found.semantic(255)
    assert (labels[:, 3:5] == 255).all() and set(np.unique(labels)) == {0, 3, 255}


def test_counts_of_lost_segments():
    found = painted(
        segment("dog", slice(0, 0), ALL),
        segment("dog", slice(0, 2), slice(0, 2)),
        segment("sky", ALL, ALL),
        segment("sky", slice(0, 3), ALL),
    )
    assert found.counts == {
        **{"segments": {"dog": 1, "sky": 1}, "hidden": {"dog": 1}, "empty": {"dog": 1}},
        **{"things": {"dog": 1}, "pixels": {"all": 48, "unlabelled": 0}},
    }
    assert set(found.labels.values()) == {2}


def test_against_brute_force(monkeypatch):
    """
    Each pixel belongs to the last segment that covers it; masks are random.

    No mask is decoded as a whole, which would take objects x pixels of the image.
    """
    monkeypatch.delattr(rle, "decode")
    rng = np.random.default_rng(0)
    for _ in range(20):
        masks = rng.random((5, 6, 8)) < 0.4
        labels = rng.choice(["cat", "dog", "sky", "grass", "mirror"], 5)
        segments = [
            Segment(label, rle.encode(np.asfortranarray(mask, np.uint8)))
            for label, mask in zip(labels, masks)
        ]
        found = painted(*segments)
        owners = {}  # id -> its segments
        for y, x in np.ndindex(6, 8):
            owner = max(np.flatnonzero(masks[:, y, x]), default=None)
            if owner is None or labels[owner] == "mirror":
                assert found.ids[y, x] == 0
                continue
            assert KINDS.classes[found.labels[found.ids[y, x]]] == labels[owner]
            one = labels[owner] if labels[owner] in KINDS.stuff else owner
            assert owners.setdefault(found.ids[y, x], one) == one
