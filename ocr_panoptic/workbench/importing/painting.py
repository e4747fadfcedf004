"""Painting: segments that may overlap become a panoptic map, in which each pixel has one.

Shape letters: H, W size of the image.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from pycocotools import mask as rle

from .annotated_image import AnnotatedImage, Segment
from .kinds import Kinds

_IGNORED = -1  # while it is painted; void in the end


def _is_object(segment: Segment) -> bool:
    return segment.instance is not False and not segment.is_crowd


def _level(segment: Segment, kinds: Kinds) -> int:
    """Objects lie on crowds and on regions of things, and these on stuff."""
    return 0 if segment.label in kinds.stuff else 1 + _is_object(segment)


OVERLAPS: dict[str, Callable[[Segment], float] | None] = {
    "order": None,  # the later one covers the earlier one
    "area": lambda segment: -int(rle.area(segment.mask)),  # the smaller one the larger one
    # The one of the higher score; what a person drew is surer than what a model found.
    "score": lambda segment: np.inf if segment.score is None else segment.score,
}


@dataclass
class Losses:
    """The parts of the annotations that are not in the maps.

    Attributes:
        segments: of the maps, were there no overlap.
        cut: of which a part is covered by others.
        covered: pixels of these parts.
        hidden: class -> segments that are wholly covered, and left out.
        empty: class -> annotations without any pixel.
        things, crowds: class of things -> its annotations, and those of them that are crowds.
        unlabelled: pixels of no segment.
        pixels: of all images.
    """

    segments: int = 0
    cut: int = 0
    covered: int = 0
    hidden: Counter = field(default_factory=Counter)
    empty: Counter = field(default_factory=Counter)
    things: Counter = field(default_factory=Counter)
    crowds: Counter = field(default_factory=Counter)
    unlabelled: int = 0
    pixels: int = 0

    def as_json(self) -> dict:
        return {
            key: dict(sorted(value.items())) if isinstance(value, Counter) else value
            for key, value in vars(self).items()
        }

    @classmethod
    def of(cls, parts: Iterable["Losses"]) -> "Losses":
        """The sum of those of several images."""
        total = cls()
        for part in parts:
            for key, value in vars(part).items():
                setattr(total, key, getattr(total, key) + type(getattr(total, key))(value))
        return total


@dataclass(frozen=True)
class Painted:
    """
    Attributes:
        ids: int32 [H, W], segment ids 1, 2, ...; 0 is void.
        labels: of each segment id, a place in ``kinds.classes``.
        crowds: ids of segments that are crowds.
        losses: what is not in it.
    """

    ids: np.ndarray
    labels: dict[int, int]
    crowds: frozenset[int]
    losses: Losses

    def semantic(self, void: int) -> np.ndarray:
        """Places in ``kinds.classes``, uint8 [H, W]."""
        table = np.full(max(self.labels, default=0) + 1, void, np.uint8)
        for number, label in self.labels.items():
            table[number] = label
        return table[self.ids]


def paint(image: AnnotatedImage, kinds: Kinds, overlap: str, rest: str | None = None) -> Painted:
    """
    The map of an image's segments.

    A class of stuff is one segment. So are the crowds and regions of a class of things, one crowd:
    which objects they are of is not told, and an evaluation knows one crowd of a class in an image.

    Args:
        overlap: key of :data:`OVERLAPS`, the rule by which one segment covers another.
        rest: class of stuff that pixels of no segment get; else they are void.
    """
    segments = image.segments
    if (rule := OVERLAPS[overlap]) is not None:
        segments = sorted(segments, key=lambda s: (_level(s, kinds), rule(s)))
    ids = np.zeros((image.height, image.width), np.int32)
    places = {name: place for place, name in enumerate(kinds.classes)}
    numbers: dict[tuple, int] = {}  # what is one segment -> its id
    masks: dict[int, list[dict]] = {}  # of each id
    labels, crowds, losses = {}, set(), Losses(pixels=ids.size)
    for place, segment in enumerate(segments):
        pixels = segment.pixels()
        if segment.label in kinds.ignore:
            ids[pixels] = _IGNORED
            continue
        if not pixels.any():
            losses.empty[segment.label] += 1
            continue
        thing = segment.label in kinds.things
        if thing:
            losses.things[segment.label] += 1
            losses.crowds[segment.label] += not _is_object(segment)
        key = (segment.label, place if thing and _is_object(segment) else None)
        number = numbers.setdefault(key, len(numbers) + 1)
        ids[pixels] = number
        masks.setdefault(number, []).append(segment.mask)
        labels[number] = places[segment.label]
        if thing and not _is_object(segment):
            crowds.add(number)
    losses.segments = len(numbers)
    visible = np.bincount(ids.ravel().clip(0), minlength=len(numbers) + 1).tolist()
    for (name, _), number in numbers.items():
        covered = int(rle.area(rle.merge(masks[number]))) - visible[number]
        losses.covered += covered
        if not visible[number]:
            losses.hidden[name] += 1
            del labels[number]
        elif covered:
            losses.cut += 1
    free = ids == 0
    losses.unlabelled = int(free.sum())
    if rest is not None and losses.unlabelled:
        number = numbers.setdefault((rest, None), len(numbers) + 1)
        ids[free], labels[number] = number, places[rest]
    return Painted(ids.clip(0), labels, frozenset(crowds & labels.keys()), losses)
