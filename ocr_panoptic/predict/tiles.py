"""
Panoptic segmentation of a large image in overlapping tiles, whose segments are joined.

The middle of an overlap is a seam: each of the two tiles contributes the pixels on its own side.
An object can appear in several tiles; each appearance is called a sighting. Two sightings are
joined into one thing if they have the same class and their masks in the overlap have an IoU above
:data:`SAME`. A thing becomes void if its area in the result is less than half the area of its
largest sighting. All stuff pixels of a class form one segment.

Shape letters: H, W size of the image; C channels; h, w size of a tile; K semantic classes; P
sightings in all tiles.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from detectron2.evaluation.coco_evaluation import instances_to_coco_json
from detectron2.structures import Boxes, Instances

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.segment_runs import placed_run_lengths

SAME = 0.5  # Above this IoU, two sightings show the same thing; each has at most one such match.
# A thing becomes void if fewer of its pixels remain than this share of its largest sighting.
LEAST_SHARE = 0.5
# The last tile begins at a multiple of this number, FPN's coarsest stride. If the steps are
# multiples, too, features lie on the same pixels as in the whole image.
ALIGNED = 64

See = Callable[[np.ndarray], Mapping[str, Any]]
"""Maps a tile [h,w,C] to a panoptic :class:`.InferenceOutput`."""


class Span(NamedTuple):
    """Rows (or columns) of the image: a tile sees ``start:end`` and contributes ``first:last``."""

    start: int
    end: int
    first: int
    last: int


def spans(side: int, window: int, step: int) -> list[Span]:
    """Return the spans of the tiles along a side of the image; the last tile ends at the border."""
    rest = max(side - window, 0)
    count = -(-rest // step)
    starts = [*range(0, count * step, step), min(count * step, -(-rest // ALIGNED) * ALIGNED)]
    ends = [min(start + window, side) for start in starts]
    seams = [(start + end) // 2 for start, end in zip(starts[1:], ends)]
    return [Span(*span) for span in zip(starts, ends, [0, *seams], [*seams, side], strict=True)]


class TiledOutput(NamedTuple):
    """
    The panoptic result for a large image.

    Each segment has "id", "isthing", the model's "category_id" and, for a thing, "score". Instances
    are detections in COCO's results format, but without "image_id" and with the model's class
    numbers. A tile's instance is listed only if the tile contributes the pixel at the centre of the
    instance's box.
    """

    labels: np.ndarray  # semantic class of each pixel, int64 [H,W]
    confidence: np.ndarray  # probability of each pixel's label, float32 [H,W]
    ids: np.ndarray  # panoptic id of each pixel, int32 [H,W], 0 for void
    segments: list[dict[str, Any]]
    instances: list[dict[str, Any]]
    cut: int  # number of things that no tile shows as a whole


@dataclass(slots=True)
class _Sighting:
    group: int  # index of an earlier sighting of the thing; a first sighting has its own index
    tiles: set[int]  # numbers of the tiles that show the thing; only valid in its first sighting
    category: int
    score: float
    area: int  # number of pixels in the tile
    is_cut: bool  # whether the thing touches a border of the tile that lies inside the image


class _Tile(NamedTuple):
    top: int
    left: int
    ids: np.ndarray  # int32 [h,w]: K plus the index of a sighting, or a semantic label


def see_in_tiles(
    see: See,
    image: np.ndarray,
    window: Sequence[int],
    step: Sequence[int],
    stuff_areas: Sequence[float],
) -> TiledOutput:
    """
    Run a model on overlapping tiles of an image [H,W,C], and join their segments.

    Args:
        see: function that runs the model on a tile [h,w,C].
        window: height and width of a tile.
        step: distance (down, right) between tiles.
        stuff_areas: smallest area in pixels of a stuff segment, for each semantic class.
    """
    size = image.shape[:2]
    labels, confidence = np.empty(size, np.int64), np.empty(size, np.float32)
    ids, instances = np.empty(size, np.int32), []
    joiner = _Joiner(len(stuff_areas))
    rows, columns = (spans(*axis) for axis in zip(size, window, step, strict=True))
    above: list[_Tile] = []
    for row in rows:
        tiles: list[_Tile] = []
        for column in columns:
            output = see(
                np.ascontiguousarray(image[row.start : row.end, column.start : column.end])
            )
            found = {key: output[key].cpu().numpy() for key in ("confidence", "labels")}
            is_inside = row.start > 0, row.end < size[0], column.start > 0, column.end < size[1]
            panoptic, listed = output["panoptic_seg"]
            own = joiner.add(panoptic, listed, found["labels"], is_inside)
            tile = _Tile(row.start, column.start, own)
            for other in (*above, *tiles):
                joiner.join(tile, other)
            tiles.append(tile)
            place = slice(row.first, row.last), slice(column.first, column.last)
            inside = tuple(slice(s.first - s.start, s.last - s.start) for s in (row, column))
            labels[place], confidence[place] = found["labels"][inside], found["confidence"][inside]
            ids[place] = own[inside]
            instances += _placed(output["instances"], row, column, size)
        above = tiles
    segment_of, segments, cut = joiner.segments(np.bincount(ids.reshape(-1)), stuff_areas)
    return TiledOutput(labels, confidence, segment_of[ids], segments, instances, cut)


class _Joiner:
    """Collects the things of all tiles, and joins the things that match in an overlap."""

    def __init__(self, num_labels: int):
        self._num_labels = num_labels
        self._sightings: list[_Sighting] = []
        self._count = 0  # number of tiles so far

    def add(
        self, found: Any, segments: Sequence[dict], labels: np.ndarray, is_inside: Sequence[bool]
    ) -> np.ndarray:
        """
        Add a tile's things, and return the id of each pixel of the tile, int32 [h,w].

        The pixels of a thing have the id K + i, where i is the number of things added before it.
        The id of any other pixel is its semantic label.

        Args:
            found: segment id of each pixel of the tile, a tensor [h,w].
            segments: dicts of the tile's segments.
            labels: semantic labels, int64 [h,w].
            is_inside: whether the tile's top, bottom, left and right borders lie inside the image.
        """
        found = found.cpu().numpy()
        areas = np.bincount(found.reshape(-1), minlength=len(segments) + 1)
        cut: set[int] = set()
        for edge, inside in zip((found[0], found[-1], found[:, 0], found[:, -1]), is_inside):
            cut.update(np.unique(edge).tolist() if inside else ())
        ids_of = np.zeros(len(areas), np.int32)
        for segment in segments:
            if segment["isthing"]:
                number, place = segment["id"], len(self._sightings)
                ids_of[number] = self._num_labels + place
                kind = segment["category_id"], segment["score"]
                sighting = _Sighting(place, {self._count}, *kind, int(areas[number]), number in cut)
                self._sightings.append(sighting)
        self._count += 1
        ids = ids_of[found]
        return np.where(ids, ids, labels.astype(np.int32))

    def join(self, tile: _Tile, other: _Tile) -> None:
        """
        Join the matching things of two tiles, starting with the highest IoU in the overlap.

        Two things stay separate if any tile shows both.
        """
        ids = _common(tile, other)
        things = [part >= self._num_labels for part in ids]
        both = things[0] & things[1]
        if not both.any():
            return
        areas = [dict(zip(*np.unique(part[t], return_counts=True))) for part, t in zip(ids, things)]
        codes = ids[0][both].astype(np.int64) << 32 | ids[1][both]
        codes, shared = np.unique(codes, return_counts=True)
        alike = []
        for a, b, pixels in zip(codes >> 32, codes & 0xFFFFFFFF, shared):
            iou = pixels / (areas[0][a] + areas[1][b] - pixels)
            if iou > SAME:
                alike.append((-iou, a, b))
        for _, *pair in sorted(alike):
            firsts = sorted(self._first(number - self._num_labels) for number in pair)
            one, two = (self._sightings[first] for first in firsts)
            if one.category == two.category and not one.tiles & two.tiles:
                one.tiles |= two.tiles
                two.group = firsts[0]

    def _first(self, number: int) -> int:
        """Return the lowest number in the group of joined things that contains thing ``number``."""
        while (group := self._sightings[number].group) != number:
            number = group
        return number

    def segments(
        self, areas: np.ndarray, stuff_areas: Sequence[float]
    ) -> tuple[np.ndarray, list[dict[str, Any]], int]:
        """
        Return the segments of the whole image, after all tiles have been added and joined.

        Args:
            areas: number of pixels in the whole image for each id that :meth:`add` returned.
            stuff_areas: smallest area in pixels of a stuff segment, for each semantic class.

        Returns:
            (segment_of, segments, cut): the segment id for each id that :meth:`add` returned, int32
            [number of ids], 0 for void; a dict for each segment; the number of things that no tile
            shows as a whole
        """
        stuff = self._num_labels
        segment_of = np.zeros(stuff + len(self._sightings), np.int32)
        areas = np.pad(areas, (0, len(segment_of) - len(areas)))
        segments: list[dict[str, Any]] = []
        groups: dict[int, list[int]] = defaultdict(list)
        for number in range(len(self._sightings)):
            groups[self._first(number)].append(number)
        cut = 0
        for members in groups.values():
            numbers = [stuff + number for number in members]
            shown = [self._sightings[number] for number in members]
            most = max(shown, key=lambda sighting: sighting.area)
            if areas[numbers].sum() < max(1, most.area * LEAST_SHARE):
                continue
            cut += all(sighting.is_cut for sighting in shown)
            segment = {"isthing": True, "category_id": most.category, "score": most.score}
            segments.append({"id": len(segments) + 1, **segment})
            segment_of[numbers] = len(segments)
        for label in range(1, stuff):
            if areas[label] >= max(1, stuff_areas[label]):
                segment = {"isthing": False, "category_id": label}
                segments.append({"id": len(segments) + 1, **segment})
                segment_of[label] = len(segments)
        return segment_of, segments, cut


def _placed(
    instances: Instances, row: Span, column: Span, size: tuple[int, int]
) -> list[dict[str, Any]]:
    """
    Return the instances that a tile contributes, as COCO results in the image's coordinates.

    The tile contributes an instance if it contributes the pixel at the centre of the instance's
    box.
    """
    boxes = instances.pred_boxes.tensor.cpu()
    boxes = boxes + boxes.new_tensor([column.start, row.start] * 2)
    x, y = (boxes[:, :2] + boxes[:, 2:]).unbind(1)  # twice the centres
    mine = (x >= 2 * column.first) & (x < 2 * column.last)
    mine &= (y >= 2 * row.first) & (y < 2 * row.last)
    mine = mine.nonzero()[:, 0]
    placed = Instances(size)
    placed.pred_boxes = Boxes(boxes[mine])
    placed.scores = instances.scores.cpu()[mine]
    placed.pred_classes = instances.pred_classes.cpu()[mine]
    results = coco_results(placed)
    for result, number in zip(results, mine.tolist()):
        mask = instances.pred_masks[number].cpu().numpy()
        result["segmentation"] = placed_run_lengths(mask, (row.start, column.start), size)
    return results


def coco_results(instances: Instances) -> list[dict[str, Any]]:
    """Return instances as COCO results without "image_id", with the model's class numbers."""
    results = instances_to_coco_json(instances, 0)
    for result in results:
        del result["image_id"]
    return results


def check_tiling(window: Sequence[int], step: Sequence[int]) -> None:
    """Raise UserError unless 0 < ``step`` < ``window`` on both axes, so that tiles overlap."""
    if len(window) != 2 or len(step) != 2 or not all(0 < s < w for s, w in zip(step, window)):
        raise UserError(
            f"TEST.SLIDING_WINDOW has SIZE {list(window)} and STRIDE {list(step)}; expected a "
            "height and a width in pixels, with 0 < STRIDE < SIZE, since the tiles of a panoptic "
            "model must overlap."
        )


def _common(*tiles: _Tile) -> list[np.ndarray]:
    """Crop the id map of each tile to the area in which all the tiles overlap."""
    top, left = max(t.top for t in tiles), max(t.left for t in tiles)
    bottom = max(top, min(t.top + t.ids.shape[0] for t in tiles))
    right = max(left, min(t.left + t.ids.shape[1] for t in tiles))
    return [t.ids[top - t.top : bottom - t.top, left - t.left : right - t.left] for t in tiles]
