"""Segments and what is suspicious of them, by hand and against loops over pixels."""

from itertools import combinations

import numpy as np
import pytest

from ocr_panoptic.workbench.looking.data_facts import (
    SEAM,
    SegmentFacts,
    parts_distance,
    segments_of,
    suspicions_of,
    void_shares,
)
from ocr_panoptic.workbench.looking.data_items import DataClass, TrueSegment
from ocr_panoptic.workbench.looking.near_images import NEAR, near_pairs, small_picture

CLASSES = [DataClass("car", True, (9, 9, 9)), DataClass("road", False, (0, 0, 9))]
CAR, ROAD = 0, 1


def found_in(ids: np.ndarray, *segments: TrueSegment) -> list[tuple]:
    listed = segments_of(ids, segments)
    return [(s.kind, s.segments, s.value) for s in suspicions_of(ids, listed, CLASSES)]


def test_by_hand():
    """120 x 150 pixels, of which 1.8 are tiny."""
    ids = np.full((120, 150), 1)
    ids[10, 10] = 2  # tiny
    ids[20:24, 20:30] = ids[20:24, 40:46] = 3  # 10 long, its second part is 10 to the right
    ids[40:44, 20:30] = ids[40:44, 39:45] = 4  # 9 to the right
    ids[60:64, 20:30] = ids[60, 60:63] = 5  # the second part is too small
    ids[80:90, 20:40] = 6
    ids[81:89, 21:39] = 7  # 144 of 200 pixels of its box
    ids[80:90, 60:70] = 8
    ids[80:89, 61:70] = 9  # the box is 81 % of the other's
    ids[95:112, 90:120] = 0
    ids[102:105, 102:108] = 10  # an island in void
    ids[60:66, 100:110] = 0
    ids[62:64, 102:108] = 12  # a seam around it is 2 wide
    ids[110, 110] = 11  # a crowd
    cars = [TrueSegment(number, CAR, number == 11) for number in range(2, 13)]
    found = found_in(ids, TrueSegment(1, ROAD, False), *cars)
    assert found == [
        ("tiny", (2,), 1 / 18000),
        ("split", (3,), 1.0),
        ("duplicate", (8, 9), 0.81),
        ("void", (10,), 1.0),
    ]


def test_stuff_may_have_parts_and_equal_boxes():
    ids = np.full((120, 150), 1)
    ids[20:24, 20:30] = ids[20:24, 80:90] = 2
    assert not found_in(ids, TrueSegment(1, ROAD, False), TrueSegment(2, ROAD, False))
    assert found_in(ids, TrueSegment(1, ROAD, False), TrueSegment(2, CAR, False)) == [
        ("split", (2,), 5.0)
    ]


def parts(mask: np.ndarray) -> list[set]:
    """8-connected, by flooding."""
    rest, found = set(zip(*np.nonzero(mask), strict=True)), []
    while rest:
        part, edge = set(), {rest.pop()}
        while edge:
            part |= edge
            around = {(y + j, x + i) for y, x in edge for j in (-1, 0, 1) for i in (-1, 0, 1)}
            edge = around & rest
            rest -= edge
        found.append(part)
    return sorted(found, key=len, reverse=True)


@pytest.mark.parametrize("seed", range(20))
def test_parts_against_flooding(seed):
    rng = np.random.default_rng(seed)
    ids = np.zeros((40, 50), int)
    for _ in range(3):
        y, x = rng.integers(0, 34), rng.integers(0, 44)
        ids[y : y + rng.integers(1, 7), x : x + rng.integers(1, 7)] = 5
    (segment,) = segments_of(ids, [TrueSegment(5, CAR, False)])
    largest = parts(ids == 5)
    expected = 0.0
    if len(largest) > 1 and len(largest[1]) >= 0.1 * (ids == 5).sum():
        (top, left, bottom, right), other = (
            (
                *np.min(list(part), axis=0),
                *np.max(list(part), axis=0),
            )
            for part in largest[:2]
        )
        down = max(other[0] - bottom - 1, top - other[2] - 1, 0)
        across = max(other[1] - right - 1, left - other[3] - 1, 0)
        expected = np.hypot(down, across) / max(bottom - top + 1, right - left + 1)
    if len({len(part) for part in largest}) == len(largest):  # else it is open which come first
        assert parts_distance(ids, segment) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_void_against_loops(seed):
    rng = np.random.default_rng(seed)
    ids = np.kron(rng.choice([0, 0, 0, 1, 2, 3], (9, 10)), np.ones((3, 2), int))
    outline, touching = {}, {}
    height, width = ids.shape
    void = np.pad(ids, SEAM, constant_values=0) == 0
    # In a square of void, of which less than half may lie beyond the image.
    wide, half = np.zeros(ids.shape, bool), SEAM - SEAM // 2
    for y in range(half, height + half):
        for x in range(half, width + half):
            if void[y : y + SEAM, x : x + SEAM].all():
                wide[max(0, y - SEAM) : y, max(0, x - SEAM) : x] = True
    assert 0 < wide.sum() < (ids == 0).sum()
    kind = np.where((ids == 0) & ~wide, -1, ids)
    for y in range(height):
        for x in range(width):
            for v, u in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= v < height and 0 <= u < width and kind[v, u] != kind[y, x]:
                    outline[ids[y, x]] = outline.get(ids[y, x], 0) + 1
                    touching[ids[y, x]] = touching.get(ids[y, x], 0) + wide[v, u]
    expected = {k: touching[k] / outline[k] for k in outline if k and touching[k]}
    assert void_shares(ids) == pytest.approx(expected)
    assert void_shares(ids + 1) == {}


def test_segments_of_a_map():
    ids = np.array([[7, 7, 0], [3, 7, 9]])
    found = segments_of(ids, [TrueSegment(7, CAR, True), TrueSegment(3, ROAD, False)])
    assert found == [
        SegmentFacts(3, ROAD, 1, (0, 1, 1, 1), False),
        SegmentFacts(7, CAR, 3, (0, 0, 2, 2), True),
    ]


def test_near_pairs_against_loops():
    rng = np.random.default_rng(0)
    first = [rng.integers(0, 256, (16, 16, 3)).astype(np.uint8) for _ in range(12)]
    second = [
        np.clip(first[k] + rng.normal(0, sigma, (16, 16, 3)), 0, 255).astype(np.uint8)
        for k, sigma in enumerate((0, 1, 2, 3, 4, 4.2, 5, 9))
    ]
    noise = rng.normal(0, 1, (16, 16, 3))
    first += [first[3], np.clip(first[5] + noise, 0, 255).astype(np.uint8)]

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.sqrt(np.mean((a.astype(float) - b) ** 2)))

    nearest = [min((distance(a, b), j) for j, b in enumerate(second)) for a in first]
    expected = [(i, j, d) for i, (d, j) in enumerate(nearest) if d < NEAR]
    found = near_pairs(first, second)
    assert sorted(found) == [(i, j, pytest.approx(d)) for i, j, d in expected]
    assert [pair.distance for pair in found] == sorted(pair.distance for pair in found)
    assert {pair.first for pair in found} >= {0, 1, 2, 3, 12}
    own = [(i, j) for i, j in combinations(range(14), 2) if distance(first[i], first[j]) < NEAR]
    assert [pair[:2] for pair in near_pairs(first)] == own == [(3, 12), (5, 13)]
    equal = near_pairs([first[0]] * 1100)  # more than are compared at once
    assert len(equal) == 1099 and {pair.second for pair in equal} == set(range(1, 1100))
    assert near_pairs([]) == near_pairs(first, []) == []


def test_small_pictures_do_not_depend_on_the_size():
    rng = np.random.default_rng(0)
    image = np.kron(rng.integers(0, 256, (16, 16, 3)), np.ones((6, 4, 1))).astype(np.uint8)
    assert np.array_equal(small_picture(image), image[::6, ::4])
    assert np.array_equal(small_picture(image[::2, ::2]), image[::6, ::4])
