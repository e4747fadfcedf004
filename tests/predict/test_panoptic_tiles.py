"""Tiles of a panoptic model: a perfect network gives the same segments as for the whole image."""

from collections.abc import Callable

import numpy as np
import pycocotools.mask as mask_util
import pytest
import torch
from detectron2.structures import BitMasks, Instances

from ocr_panoptic.predict.tiles import check_tiling, see_in_tiles, spans

STUFF_AREAS = [0.0, 30.0, 30.0]  # things, sky, ground


def scene(height: int, width: int, discs: list[tuple[int, int, int]]) -> np.ndarray:
    """Return an image [H,W,3] of discs (row, column, radius): their numbers from 1, and labels."""
    image = np.zeros((height, width, 3), np.uint8)
    y, x = np.mgrid[:height, :width]
    image[..., 1] = 1 + (y >= height // 2)
    for number, (row, column, radius) in enumerate(discs, 1):
        image[..., 0][(y - row) ** 2 + (x - column) ** 2 <= radius**2] = number
    return image


def see(image: np.ndarray, class_of: Callable[[int], int] = lambda number: number % 2) -> dict:
    """Return a perfect network's output: a thing for each disc, scored by its visible share."""
    numbers = image[..., 0]
    found = [n for n in np.unique(numbers).tolist() if n]
    instances = Instances(numbers.shape)
    masks = [numbers == n for n in found] or np.zeros((0, *numbers.shape), bool)
    instances.pred_masks = torch.from_numpy(np.asarray(masks))
    instances.pred_boxes = BitMasks(instances.pred_masks).get_bounding_boxes()
    instances.scores = torch.tensor([(numbers == n).sum() / 4000 for n in found])
    instances.pred_classes = torch.tensor([class_of(n) for n in found], dtype=torch.int64)
    ids = np.zeros(numbers.shape, np.int32)
    for k, number in enumerate(found, 1):
        ids[numbers == number] = k
    segments = [
        {"id": k, "isthing": True, "category_id": class_of(n), "score": s}
        for k, (n, s) in enumerate(zip(found, instances.scores.tolist()), 1)
    ]
    labels = np.where(numbers, 0, image[..., 1]).astype(np.int64)
    return {
        "labels": torch.from_numpy(labels),
        "confidence": torch.from_numpy(np.where(numbers, 0.0, 0.5).astype(np.float32)),
        "panoptic_seg": (torch.from_numpy(ids), segments),
        "instances": instances,
    }


def tiled(image: np.ndarray, window: tuple, step: tuple, network=see):
    """Return the ids of the joined segments [H,W], the whole result, and the instances."""
    found = see_in_tiles(network, image, window, step, STUFF_AREAS)
    whole = see(image)
    assert np.array_equal(found.labels, whole["labels"]) or network is not see
    assert np.array_equal(found.confidence, whole["confidence"]) or network is not see
    return found.ids, found, found.instances


# Discs across seams and corners of tiles of 48 that overlap by 24; touching, apart, at the borders.
DISCS = [(36, 60, 11), (36, 36, 11), (60, 36, 11), (60, 60, 11), (84, 84, 8), (5, 100, 9)]


@pytest.mark.parametrize("window, step", [((48, 48), (24, 24)), ((64, 48), (40, 20))])
@pytest.mark.parametrize("size", [(120, 130), (96, 97), (48, 120)])
def test_tiles_give_the_segments_of_the_whole(size, window, step):
    image = scene(*size, DISCS)
    ids, joined, instances = tiled(image, window, step)
    expected = np.where(image[..., 0], 10 + image[..., 0], image[..., 1])
    pairs = {*zip(ids.ravel().tolist(), expected.ravel().tolist())}
    assert len(pairs) == len(np.unique(ids)) == len(np.unique(expected))  # one to one
    whole = see(image)
    seen = whole["instances"]
    names = dict(pairs)
    scores = dict(zip(np.unique(image[..., 0])[1:].tolist(), seen.scores.tolist()))
    assert joined.cut == 0
    for segment in joined.segments:
        number = segment["id"]
        if segment["isthing"]:
            disc = names[number] - 10
            assert segment["score"] == scores[disc]
            assert segment["category_id"] == disc % 2
        else:
            assert segment["category_id"] == names[number] and "score" not in segment
    # Each disc occurs once, in the pixels of the whole image.
    found = {bytes(mask_util.decode(r["segmentation"])): r for r in instances}
    assert len(instances) == len(found) == len(seen)
    for k, mask in enumerate(seen.pred_masks.numpy()):
        result = found[mask.astype(np.uint8).tobytes()]
        x0, y0, x1, y1 = seen.pred_boxes.tensor[k].tolist()
        assert result["bbox"] == [x0, y0, x1 - x0, y1 - y0]
        assert result["score"] == float(seen.scores[k])


def test_stuff_is_as_large_as_in_the_whole_image():
    """30 pixels spread over the tiles are a segment; 24 pixels are not."""
    image = scene(40, 130, [])
    image[..., 1] = 1
    image[10, 40:70, 1] = 2
    ids, joined, _ = tiled(image, (40, 40), (24, 24))
    assert [s["category_id"] for s in joined.segments] == [1, 2] and (ids > 0).all()
    image[10, 40:46, 1] = 1
    ids, joined, _ = tiled(image, (40, 40), (24, 24))
    assert [s["category_id"] for s in joined.segments] == [1] and (ids == 0).sum() == 24


def test_an_object_larger_than_a_tile_is_joined_and_counted():
    """Its parts become one segment and are counted, because no tile shows the whole object."""
    ids, joined, _ = tiled(scene(120, 120, [(60, 60, 50), (4, 4, 4)]), (48, 48), (24, 24))
    assert sum(s["isthing"] for s in joined.segments) == 2
    assert joined.cut == 1


def test_tiles_that_see_different_classes_are_not_joined():
    """If tiles give a disc on their seam two classes, the larger part stays."""
    calls = []

    def network(tile):
        calls.append(tile)
        return see(tile, lambda number: len(calls) - 1)

    image = scene(48, 72, [(20, 36, 8)])
    ids, joined, _ = tiled(image, (48, 48), (48 - 1, 24), network)
    things = [s for s in joined.segments if s["isthing"]]
    assert [s["category_id"] for s in things] == [1]
    assert ids[20, 35] == 0 and ids[20, 36] == things[0]["id"]


def two_tiles(discs: list, change: Callable[[np.ndarray], None], image=None) -> tuple:
    """Return ids and things in two tiles; ``change`` changes the right tile's discs in place."""

    def network(tile):
        tile = tile.copy()
        if tile[0, 0, 2]:  # the right tile
            change(tile[..., 0])
        return see(tile, lambda number: 0)

    image = scene(48, 72, discs) if image is None else image
    image[:, 24:, 2] = 1
    ids, joined, _ = tiled(image, (48, 48), (47, 24), network)
    assert set(np.unique(ids)) - {0} == {s["id"] for s in joined.segments}
    return ids, [s["id"] for s in joined.segments if s["isthing"]]


def test_two_things_in_a_tile_stay_two():
    """This holds even if the next tile shows one thing there."""
    ids, things = two_tiles(
        [(14, 30, 9), (32, 30, 7)], lambda numbers: np.minimum(numbers, 1, out=numbers)
    )
    assert ids[14, 30] != ids[32, 30] and len(things) == 2


def test_two_halves_in_the_overlap_stay_two():
    """Masks whose IoU in the overlap is at most a half are different things."""
    _, things = two_tiles([(20, 35, 8)], lambda numbers: numbers[:, :12].fill(0))
    assert len(things) == 2


@pytest.mark.parametrize("right, areas, void", [(40, [], 9 * 4), (39, [9 * 5], 0)])
def test_a_thing_that_the_other_tile_does_not_see(right, areas, void):
    """The seam leaves 4 of a square's 9 columns, which become void, or 5, which become a thing."""
    image = scene(48, 72, [])
    image[10:19, right - 8 : right + 1, 0] = 1
    ids, things = two_tiles([], lambda numbers: numbers.fill(0), image)
    assert [np.count_nonzero(ids == number) for number in things] == areas
    assert (ids == 0).sum() == void


@pytest.mark.parametrize(
    "side, window, step", [(100, 40, 24), (1000, 256, 192), (30, 40, 24), (40, 40, 7), (65, 64, 9)]
)
def test_spans(side, window, step):
    """At a step of 192, the last of 872 columns would have 104; it begins at a multiple of 64."""
    assert spans(872, 256, 192)[-1][:2] == (640, 872)
    found = spans(side, window, step)
    assert (found[0].start, found[0].first, found[-1].end, found[-1].last) == (0, 0, side, side)
    for one, after in zip(found, found[1:]):
        assert one.last == after.first and one.start < after.start < one.end
        assert one.end - one.start == window
    for span in found:
        assert span.start <= span.first < span.last <= span.end


@pytest.mark.parametrize("window, step", [((), ()), ((40, 40), (40, 20)), ((40, 40), (20,))])
def test_tiles_that_do_not_overlap(window, step):
    with pytest.raises(ValueError, match="TEST.SLIDING_WINDOW"):
        check_tiling(window, step)
