"""The contents of an annotated image, into which every format is read."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pycocotools import mask as rle


@dataclass(frozen=True)
class Segment:
    """
    Pixels of one class.

    Attributes:
        label: the class, as the tool names it.
        mask: COCO's compressed RLE, {"size": [height, width], "counts": bytes}, as large as the
            image.
        instance: True of one object, False of a region that may hold several or none (a semantic
            label), None where the format does not tell: then the kind of the class decides.
        is_crowd: a group of things that are not told apart.
        is_doubtful: the mark of a crowd may be the tool's for any mask that is no polygon.
        score: how sure a model was, None where a person drew it.
    """

    label: str
    mask: dict
    instance: bool | None = None
    is_crowd: bool = False
    is_doubtful: bool = False
    score: float | None = None

    def pixels(self) -> np.ndarray:
        """bool [height, width]"""
        return rle.decode(self.mask).astype(bool)


@dataclass(frozen=True)
class AnnotatedImage:
    """
    One image and its segments, the lowest first: a later one covers an earlier one where both lie.

    Attributes:
        file: the image, which exists.
        name: its path below the folder of the images, by which results are named.
        height, width: in pixels.
        segments: in the order in which they are painted.
    """

    file: Path
    name: str
    height: int
    width: int
    segments: Iterable[Segment] = ()


def without_crowds(image: AnnotatedImage) -> AnnotatedImage:
    """The image with an object in the place of each crowd."""
    segments = [replace(segment, is_crowd=False) for segment in image.segments]
    return replace(image, segments=segments)
