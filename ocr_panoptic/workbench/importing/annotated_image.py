"""The annotated image, into which the annotations of every format are converted."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pycocotools import mask as rle

from .masks import mask_of_pixels


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
    """

    label: str
    mask: dict
    instance: bool | None = None
    is_crowd: bool = False
    is_doubtful: bool = False
    is_box: bool = False

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
    the pixels that segments in between cover, so painting gives the same result.

    Args:
        parts: key and segment of each part, in painting order. Parts with equal keys and labels
            form one object; a part with the key None is an object by itself.
    """
    parts = list(parts)
    members: dict[Hashable, list[int]] = {}
    for place, (key, segment) in enumerate(parts):
        members.setdefault(place if key is None else (key, segment.label), []).append(place)
    result = {}
    for places in members.values():
        last = parts[places[-1]][1]
        if len(places) > 1:
            pixels = np.zeros(last.mask["size"], bool)
            for place in range(places[0], places[-1] + 1):
                pixels[parts[place][1].pixels()] = place in places
            last = replace(last, mask=mask_of_pixels(pixels))
        result[places[-1]] = last
    return [result[place] for place in sorted(result)]
