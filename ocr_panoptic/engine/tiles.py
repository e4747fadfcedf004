"""Panoptic segments of an image that is seen in overlapping tiles, joined across the seams.

Of two tiles that overlap each gives the pixels on its side of the middle, the seam. A thing of one
is that of the other if their masks in the overlap have an IoU above :data:`SAME` and one class;
what is left of things that one tile alone sees, most of them on another's side, is void. Stuff of a
class is one segment everywhere.

Shape letters: H, W size of the image; n rows of a band; h, w size of a tile; K semantic classes;
P parts, the things of all tiles.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from detectron2.evaluation.coco_evaluation import instances_to_coco_json
from detectron2.structures import Boxes, Instances

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.segment_runs import placed_run_lengths, segment_statistics
from ocr_panoptic.modeling.inference import Size
from ocr_panoptic.modeling.large_images import Rows

SAME = 0.5
"""IoU; above it a thing has at most one counterpart."""
LEAST_SHARE = 0.5
"""Of the pixels that a tile has of a thing; where less is left by the seams, it is void."""
# The last tile begins at a multiple of it, the coarsest stride of FPNs, as strides that are
# multiples of it do: features fall on the same pixels as in the whole image.
ALIGNED = 64

See = Callable[[np.ndarray], Mapping[str, Any]]
"""From a tile, uint8 [h,w,3], to a panoptic :class:`.InferenceOutput`."""


class Span(NamedTuple):
    """The rows, or columns, of a tile: from ``start`` to ``end``; from ``first`` to ``last`` it
    gives the pixels."""

    start: int
    end: int
    first: int
    last: int


def spans(side: int, window: int, step: int) -> list[Span]:
    """
    Return the tiles along a side, which end at its border.

    Args:
        side: of the image, in pixels.
        window: of a tile.
        step: between them, less than the window.
    """
    rest = max(side - window, 0)
    count = -(-rest // step)
    starts = [*range(0, count * step, step), min(count * step, -(-rest // ALIGNED) * ALIGNED)]
    ends = [min(start + window, side) for start in starts]
    seams = [(start + end) // 2 for start, end in zip(starts[1:], ends)]
    return [Span(*span) for span in zip(starts, ends, [0, *seams], [*seams, side], strict=True)]


class Strip(NamedTuple):
    """
    Rows of an image, all the way across, and what a model gives for them.

    Attributes:
        image: the rows themselves, uint8 [n,W,3].
        labels: of the semantic classes, integers [n,W].
        confidence: probability of each label, float32 [n,W].
        ids: int32 [n,W]: of :class:`Joined`; of a semantic model None.
        instances: COCO's results, without "image_id" and with the model's classes, of the tiles
            that hold the centres of their boxes.
    """

    image: np.ndarray
    labels: np.ndarray
    confidence: np.ndarray
    ids: np.ndarray | None = None
    instances: Sequence[dict[str, Any]] = ()


class Joined(NamedTuple):
    """
    Attributes:
        segment_of: int32 [K+P], the segment of each id of a band, 0 for none.
        scores: float32 [K+P], those of things, -1 of stuff, 0 where void.
        segments: "id", "isthing", the model's "category_id", "area", "bbox" (x, y, width, height),
            "confidence" and, of things, "score".
        cut: how many things no tile shows whole.
    """

    segment_of: np.ndarray
    scores: np.ndarray
    segments: list[dict[str, Any]]
    cut: int


@dataclass(slots=True)
class _Part:
    """
    A thing as one tile shows it.

    Attributes:
        group: place of another part of the thing; of the first one its own.
        tiles: of the first part of a thing, the tiles that show it.
        category, score: of the model.
        area: pixels in the tile.
        is_cut: whether it reaches to a border of the tile within the image.
    """

    group: int
    tiles: set[int]
    category: int
    score: float
    area: int
    is_cut: bool


class _Tile(NamedTuple):
    """The ids of pixels of a tile, from (top, left) on."""

    top: int
    left: int
    ids: np.ndarray


class PanopticTiles:
    """
    An image that is seen in tiles: first all :meth:`bands`, then :meth:`joined`.

    Args:
        see: the model.
        rows: of the image.
        size: (H, W).
        window, step: of the tiles, height and width, and the steps between them.
        stuff_areas: least area of a segment of each semantic class, K.

    Raises:
        ValueError: the tiles do not overlap.
    """

    def __init__(
        self,
        see: See,
        rows: Rows,
        size: Size,
        window: Sequence[int],
        step: Sequence[int],
        stuff_areas: Sequence[float],
    ):
        check_tiling(window, step)
        self._size, self._see, self._rows, self._stuff_areas = size, see, rows, stuff_areas
        self._spans = [spans(*axis) for axis in zip(size, window, step, strict=True)]
        self._parts: list[_Part] = []
        # Of each id: pixels, and the first and last columns and rows of them.
        self._extents: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        self._confidence = np.zeros(len(stuff_areas))  # sums over the pixels of stuff
        self._count = 0  # of tiles

    def bands(self) -> Iterator[Strip]:
        """
        Yields:
            the rows from top to bottom; a row of tiles is in memory
        """
        above: list[_Tile] = []
        for row in self._spans[0]:
            strip = self._rows(row.start, row.end).permute(1, 2, 0).numpy()
            inside = slice(row.first - row.start, row.last - row.start)
            shape = row.last - row.first, self._size[1]
            arrays = (np.empty(shape, kind) for kind in (np.int32, np.float32, np.int32))
            band = Strip(strip[inside], *arrays, [])
            tiles: list[_Tile] = []
            for column in self._spans[1]:
                output = self._see(np.ascontiguousarray(strip[:, column.start : column.end]))
                labels, confidence = (output[key].cpu().numpy() for key in ("labels", "confidence"))
                tile = _Tile(row.start, column.start, self._add(output, labels, row, column))
                for other in (*above, *tiles):
                    self._join(tile, other)
                tiles.append(tile)
                pixels = inside, slice(column.first - column.start, column.last - column.start)
                columns = slice(column.first, column.last)
                for whole, part in zip(band[1:], (labels, confidence, tile.ids)):
                    whole[:, columns] = part[pixels]
                self._measure(band.ids[:, columns], band.confidence[:, columns], row, column)
                band.instances.extend(self._instances(output["instances"], row, column))
            yield band
            below = next((s.start for s in self._spans[0] if s.start > row.start), row.end)
            above = [_Tile(below, t.left, t.ids[below - row.start :].copy()) for t in tiles]

    def joined(self) -> Joined:
        """Return what the ids of all bands stand for."""
        stuff = len(self._stuff_areas)
        segment_of = np.zeros(stuff + len(self._parts), np.int32)
        scores = np.zeros(len(segment_of), np.float32)
        segments: list[dict[str, Any]] = []
        groups: dict[int, list[int]] = defaultdict(list)
        for number in range(len(self._parts)):
            groups[self._first(number)].append(number)
        cut = 0
        for members in groups.values():
            numbers = [stuff + number for number in members]
            shown = [self._parts[number] for number in members]
            most = max(shown, key=lambda part: part.area)
            extent = self._extent(numbers)
            # Most of it is on the sides of others, which do not see it.
            if extent.get("area", 0) < most.area * LEAST_SHARE:
                continue
            cut += all(part.is_cut for part in shown)
            known = {"id": len(segments) + 1, "isthing": True, "category_id": most.category}
            known |= {**extent, "score": most.score, "confidence": round(most.score, 4)}
            segments.append(known)
            segment_of[numbers], scores[numbers] = known["id"], most.score
        for label in range(1, stuff):
            extent = self._extent([label])
            if not extent or extent["area"] < self._stuff_areas[label]:
                continue
            confidence = round(float(self._confidence[label] / extent["area"]), 4)
            known = {"id": len(segments) + 1, "isthing": False, "category_id": label}
            segments.append({**known, **extent, "confidence": confidence})
            segment_of[label], scores[label] = known["id"], -1
        return Joined(segment_of, scores, segments, cut)

    def _add(
        self, output: Mapping[str, Any], labels: np.ndarray, row: Span, column: Span
    ) -> np.ndarray:
        """Return the ids of a tile, int32 [h,w]: its things, and elsewhere the labels."""
        found, segments = output["panoptic_seg"]
        found = found.cpu().numpy()
        areas = np.bincount(found.reshape(-1), minlength=len(segments) + 1)
        (height, width), cut = self._size, set()
        for edge, is_inside in (
            (found[0], row.start > 0),
            (found[-1], row.end < height),
            (found[:, 0], column.start > 0),
            (found[:, -1], column.end < width),
        ):
            cut.update(np.unique(edge).tolist() if is_inside else ())
        ids_of = np.zeros(len(areas), np.int32)
        for segment in segments:
            if segment["isthing"]:
                number, place = segment["id"], len(self._parts)
                ids_of[number] = len(self._stuff_areas) + place
                kind = segment["category_id"], segment["score"]
                part = _Part(place, {self._count}, *kind, int(areas[number]), number in cut)
                self._parts.append(part)
        self._count += 1
        ids = ids_of[found]
        return np.where(ids, ids, labels.astype(np.int32))

    def _join(self, tile: _Tile, other: _Tile) -> None:
        """Join the things of two tiles that are one, the most alike first. Things of one tile are
        never joined, however the others see them."""
        ids = [_common(a, b) for a, b in ((tile, other), (other, tile))]
        things = [part >= len(self._stuff_areas) for part in ids]
        both = things[0] & things[1]
        if not both.any():
            return
        areas = [dict(zip(*np.unique(part[t], return_counts=True))) for part, t in zip(ids, things)]
        codes = ids[0][both].astype(np.int64) << 32 | ids[1][both]
        codes, shared = np.unique(codes, return_counts=True)
        pairs = codes >> 32, codes & 0xFFFFFFFF
        alike = []
        for a, b, pixels in zip(*pairs, shared):
            iou = pixels / (areas[0][a] + areas[1][b] - pixels)
            if iou > SAME:
                alike.append((-iou, a, b))
        for _, *pair in sorted(alike):
            firsts = sorted(self._first(number - len(self._stuff_areas)) for number in pair)
            one, two = (self._parts[first] for first in firsts)
            if one.category == two.category and not one.tiles & two.tiles:
                one.tiles |= two.tiles
                two.group = firsts[0]

    def _first(self, number: int) -> int:
        """Return the place of the first part of the thing that a part belongs to."""
        while (group := self._parts[number].group) != number:
            number = group
        return number

    def _measure(self, ids: np.ndarray, confidence: np.ndarray, row: Span, column: Span) -> None:
        """Note the area and box of what a tile gives, and the confidence of its stuff."""
        for number, (area, (x, y, width, height)) in segment_statistics(ids).items():
            x, y = x + column.first, y + row.first
            self._extents[number].append((area, x, y, x + width, y + height))
        is_stuff, count = ids < len(self._stuff_areas), len(self._stuff_areas)
        self._confidence += np.bincount(ids[is_stuff], confidence[is_stuff], minlength=count)

    def _extent(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return "area" and "bbox" of ids together; {} where they have no pixel."""
        found = [extent for number in numbers for extent in self._extents.get(number, ())]
        if not found:
            return {}
        areas, left, top, right, bottom = zip(*found)
        x, y = min(left), min(top)
        return {"area": sum(areas), "bbox": [x, y, max(right) - x, max(bottom) - y]}

    def _instances(self, instances: Instances, row: Span, column: Span) -> list[dict[str, Any]]:
        boxes = instances.pred_boxes.tensor.cpu()
        boxes = boxes + boxes.new_tensor([column.start, row.start] * 2)
        x, y = (boxes[:, :2] + boxes[:, 2:]).unbind(1)  # twice the centres
        mine = (x >= 2 * column.first) & (x < 2 * column.last)
        mine &= (y >= 2 * row.first) & (y < 2 * row.last)
        mine = mine.nonzero()[:, 0]
        placed = Instances(self._size)
        placed.pred_boxes = Boxes(boxes[mine])
        placed.scores = instances.scores.cpu()[mine]
        placed.pred_classes = instances.pred_classes.cpu()[mine]
        results = coco_results(placed)
        for result, number in zip(results, mine.tolist()):
            mask, place = instances.pred_masks[number].cpu().numpy(), (row.start, column.start)
            result["segmentation"] = placed_run_lengths(mask, place, self._size)
        return results


def coco_results(instances: Instances) -> list[dict[str, Any]]:
    """Return COCO's results format, without "image_id" and with the model's classes."""
    results = instances_to_coco_json(instances, 0)
    for result in results:
        del result["image_id"]
    return results


def check_tiling(window: Sequence[int], step: Sequence[int]) -> None:
    """
    Raises:
        ValueError: there are no tiles, or they do not overlap.
    """
    if not window:
        raise UserError(
            "TEST.SLIDING_WINDOW is empty; set SIZE and STRIDE, to [1024, 1024] and [768, 768] "
            "say, with an overlap as large as the things are."
        )
    if len(window) != 2 or len(step) != 2 or not all(0 < s < w for s, w in zip(step, window)):
        raise UserError(
            f"TEST.SLIDING_WINDOW has SIZE {list(window)} and STRIDE {list(step)}; of a panoptic "
            "model tiles overlap, so that things are joined: height and width in pixels for each, "
            "with 0 < STRIDE < SIZE."
        )


def _common(tile: _Tile, other: _Tile) -> np.ndarray:
    """Return the ids of a tile where another one is, too."""
    ends = (
        min(t + n, o + m)
        for t, o, n, m in zip(tile[:2], other[:2], tile.ids.shape, other.ids.shape)
    )
    begins = (max(t, o) for t, o in zip(tile[:2], other[:2]))
    rows, columns = (
        slice(begin - start, max(end - start, begin - start))
        for begin, end, start in zip(begins, ends, tile[:2])
    )
    return tile.ids[rows, columns]
