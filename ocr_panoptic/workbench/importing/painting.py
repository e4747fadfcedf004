"""
Paints overlapping segments into a panoptic map, which has at most one segment at each pixel.

Shape letters: H, W size of the image.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
from pycocotools import mask as rle

from .annotated_image import AnnotatedImage, Segment
from .kinds import VOID, Kinds
from .masks import window_of

_IGNORED = -1  # id of void segments during painting; 0 in the result

# Keys with counts by class: "segments" (in the map), "things", and the keys of importing.LOSSES.
# Keys with other counts: "left out" (by kind of shape), "void" (of "segments"), and "pixels" ("all"
# and "unlabelled").
Counts = dict[str, Counter]


@dataclass(frozen=True)
class Painted:
    """
    The panoptic map of an image.

    Attributes:
        ids: int32 [H, W], segment ids 1, 2, ...; 0 is void.
        labels: each segment's index in :attr:`.Kinds.classes`, keyed by segment id.
        crowds: ids of the segments that are crowds.
    """

    ids: np.ndarray
    labels: dict[int, int]
    crowds: frozenset[int]
    counts: Counts

    def semantic(self, void: int) -> np.ndarray:
        """Return the class index of each pixel, uint8 [H, W]; ``void`` for void pixels."""
        table = np.full(max(self.labels, default=0) + 1, void, np.uint8)
        for number, label in self.labels.items():
            table[number] = label
        return table[self.ids]


def paint(
    image: AnnotatedImage, kinds: Kinds, smaller_on_top: bool = False, rest: str | None = None
) -> Painted:
    """
    Paint the segments of an image into a panoptic map.

    Each stuff class becomes a single segment. All crowds and regions of a thing class become a
    single crowd, because evaluations allow only one crowd per class and image.

    Args:
        smaller_on_top: whether to paint stuff, then crowds and regions of things, then objects,
            each group from large to small segments; otherwise later segments are on top.
        rest: stuff class for pixels without a segment; None for void.
    """

    def is_object(segment: Segment) -> bool:
        return segment.instance is not False and not segment.is_crowd

    def height(segment: Segment) -> tuple[int, int]:
        level = 0 if segment.label in kinds.stuff else 1 + is_object(segment)
        return level, -int(rle.area(segment.mask))

    segments = sorted(image.segments, key=height) if smaller_on_top else image.segments
    ids = np.zeros((image.height, image.width), np.int32)
    places = {name: place for place, name in enumerate(kinds.classes)}
    numbers: dict[tuple, int] = {}  # key of a segment in the map -> its id
    masks: dict[int, list[dict]] = defaultdict(list)  # id -> its masks
    labels, crowds = {}, set()
    counts: Counts = defaultdict(Counter)
    if image.left_out:
        counts["left out"].update(image.left_out)
    for place, segment in enumerate(segments):
        (window, pixels), name = window_of(segment.mask), segment.label
        if name == VOID or name in kinds.ignore:
            ids[window][pixels] = _IGNORED
            counts["void"]["segments"] += 1
            continue
        if not pixels.any():
            counts["empty"][name] += 1
            continue
        for what, is_so in (("boxes", segment.is_box), ("traced", segment.is_traced)):
            if is_so:
                counts[what][name] += 1
        is_thing = name in kinds.things
        key = (name, place if is_thing and is_object(segment) else None)
        number = numbers.setdefault(key, len(numbers) + 1)
        ids[window][pixels], labels[number] = number, places[name]
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
