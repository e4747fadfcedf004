"""The annotated image, into which the annotations of every format are converted."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pycocotools import mask as rle

from .masks import placed, window_of

_SLACK = 2  # pixels by which a box may be smaller than the shape that it belongs to


@dataclass(frozen=True)
class Segment:
    """
    An image region with one class.

    Attributes:
        mask: COCO's compressed RLE of the whole image, {"size": [height, width], "counts": bytes}.
        instance: True for a single object; False for a semantic region with any number of objects;
            None to treat the segment as an object if its class is a thing, else as a region.
        is_crowd: whether the segment is a group of things without separate outlines.
        is_doubtful: whether the tool may have set ``is_crowd`` only because the mask is not one
            polygon.
        is_box: whether the mask is a filled box instead of the object's outline.
        is_traced: whether the mask is a polygon that seems to go through the centres of pixels.
    """

    label: str
    mask: dict
    instance: bool | None = None
    is_crowd: bool = False
    is_doubtful: bool = False
    is_box: bool = False
    is_traced: bool = False

    def pixels(self) -> np.ndarray:
        return rle.decode(self.mask).astype(bool)


@dataclass(frozen=True)
class AnnotatedImage:
    """
    An image and its segments.

    Attributes:
        file: existing image file.
        name: path relative to the folder of images; the imported image keeps this path.
        height, width: size in pixels.
        segments: segments in painting order; later segments cover earlier segments.
        left_out: kinds of the shapes that are left out because they have no area, such as "point".
        written: path in the annotations if the image was found at a different path, else None.
    """

    file: Path
    name: str
    height: int
    width: int
    segments: Sequence[Segment] = ()
    left_out: Sequence[str] = ()
    written: str | None = None


def join_parts(parts: Iterable[tuple[Hashable | None, Segment]]) -> list[Segment]:
    """
    Join the parts of each object into one segment; return the segments in painting order.

    A joined segment takes the position of its last part in the painting order. Earlier parts lose
    the pixels that segments in between cover, so painting gives the same result. A box around
    another shape of its object is left out: tools write it beside the outline.

    Args:
        parts: key and segment of each part, in painting order. Parts with equal keys and labels
            form one object; a part with the key None is an object by itself.
    """
    parts = list(parts)
    segments = [segment for _, segment in parts]
    members: dict[Hashable, list[int]] = {}
    for place, (key, segment) in enumerate(parts):
        members.setdefault(place if key is None else (key, segment.label), []).append(place)
    surplus = {place for places in members.values() for place in _boxes_of_shapes(segments, places)}
    result = {}
    for places in members.values():
        places = [place for place in places if place not in surplus]
        last = segments[places[-1]]
        if len(places) > 1:
            pixels = np.zeros(last.mask["size"], bool)
            for place in range(places[0], places[-1] + 1):
                if place not in surplus:
                    window, inside = window_of(segments[place].mask)
                    pixels[window][inside] = place in places
            left, top, right, bottom = _hull([segments[place].mask for place in places])
            part = pixels[top:bottom, left:right]
            last = replace(last, mask=placed(part, left, top, *pixels.shape))
        result[places[-1]] = last
    return [result[place] for place in sorted(result)]


def _boxes_of_shapes(segments: Sequence[Segment], places: list[int]) -> Iterator[int]:
    """Yield the places of an object's boxes that lie around another shape of the object."""
    boxes = [place for place in places if segments[place].is_box]
    shapes = [_hull([segments[place].mask]) for place in places if boxes and place not in boxes]
    for place in boxes:
        box = _hull([segments[place].mask])
        low, high = box[:2] - _SLACK, box[2:] + _SLACK
        if any((low <= shape[:2]).all() and (shape[2:] <= high).all() for shape in shapes):
            yield place


def _hull(masks: list[dict]) -> np.ndarray:
    """Return left, top, right and bottom of the box around masks, int [4]."""
    boxes = rle.toBbox(masks).astype(int)
    boxes = boxes[boxes[:, 2] > 0] if boxes[:, 2].any() else boxes  # an empty mask has no place
    return np.concatenate([boxes[:, :2].min(0), (boxes[:, :2] + boxes[:, 2:]).max(0)])
