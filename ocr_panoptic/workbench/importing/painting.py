"""Painting: segments that may overlap become a panoptic map, in which each pixel has one segment.

Shape letters: H, W size of the image.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
from pycocotools import mask as rle

from .annotated_image import AnnotatedImage, Segment
from .kinds import VOID, Kinds

_IGNORED = -1  # while it is painted; void in the end

# "segments", "cut" (partly under others), "hidden" (wholly), "empty" (without pixel), "boxes",
# "things", "crowds" -> class -> number; "left out" (no area) -> kind of shape -> number; "void" ->
# "segments" -> number; "pixels" -> "all", "unlabelled" -> number.
Counts = dict[str, Counter]


@dataclass(frozen=True)
class Painted:
    """The map of an image.

    Attributes:
        ids: int32 [H, W], segment ids 1, 2, ...; 0 is void.
        labels: place of each segment's class in ``kinds.classes``, by segment id.
        crowds: ids of the segments that are crowds.
        counts: numbers of segments, and of those that are not in the map.
    """

    ids: np.ndarray
    labels: dict[int, int]
    crowds: frozenset[int]
    counts: Counts

    def semantic(self, void: int) -> np.ndarray:
        """Return places in ``kinds.classes``, uint8 [H, W]."""
        table = np.full(max(self.labels, default=0) + 1, void, np.uint8)
        for number, label in self.labels.items():
            table[number] = label
        return table[self.ids]


def paint(
    image: AnnotatedImage, kinds: Kinds, smaller_on_top: bool = False, rest: str | None = None
) -> Painted:
    """Paint the map of an image's segments.

    A class of stuff is one segment. The crowds and regions of a class of things are one crowd: it
    is not told which objects they hold, and an evaluation knows one crowd of a class in an image.

    Args:
        smaller_on_top: paint objects above crowds and regions of things, and these above stuff,
            the smaller above the larger; otherwise later segments above earlier ones.
        rest: class of stuff for pixels without segment, by default void.
    """

    def is_object(segment: Segment) -> bool:
        return segment.instance is not False and not segment.is_crowd

    def height(segment: Segment) -> tuple[int, int]:
        level = 0 if segment.label in kinds.stuff else 1 + is_object(segment)
        return level, -int(rle.area(segment.mask))

    segments = sorted(image.segments, key=height) if smaller_on_top else image.segments
    ids = np.zeros((image.height, image.width), np.int32)
    places = {name: place for place, name in enumerate(kinds.classes)}
    numbers: dict[tuple, int] = {}  # what is one segment -> its id
    masks: dict[int, list[dict]] = defaultdict(list)  # of each id
    labels, crowds = {}, set()
    counts: Counts = defaultdict(Counter)
    if image.left_out:
        counts["left out"].update(image.left_out)
    for place, segment in enumerate(segments):
        pixels, name = segment.pixels(), segment.label
        if name == VOID or name in kinds.ignore:
            ids[pixels] = _IGNORED
            counts["void"]["segments"] += 1
            continue
        if not pixels.any():
            counts["empty"][name] += 1
            continue
        if segment.is_box:
            counts["boxes"][name] += 1
        is_thing = name in kinds.things
        key = (name, place if is_thing and is_object(segment) else None)
        number = numbers.setdefault(key, len(numbers) + 1)
        ids[pixels], labels[number] = number, places[name]
        masks[number].append(segment.mask)
        if is_thing:
            counts["things"][name] += 1
            if not is_object(segment):
                counts["crowds"][name] += 1
                crowds.add(number)
    visible = np.bincount(ids.ravel().clip(0), minlength=len(numbers) + 1)
    for (name, _), number in numbers.items():
        counts["segments"][name] += 1
        if not visible[number]:
            counts["hidden"][name] += 1
            del labels[number]
        elif visible[number] < rle.area(rle.merge(masks[number])):
            counts["cut"][name] += 1
    free = ids == 0
    counts["pixels"].update(all=ids.size, unlabelled=int(free.sum()))
    if rest is not None and free.any():
        number = numbers.setdefault((rest, None), len(numbers) + 1)
        ids[free], labels[number] = number, places[rest]
    return Painted(ids.clip(0), labels, frozenset(crowds & labels.keys()), counts)
