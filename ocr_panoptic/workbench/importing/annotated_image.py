"""The contents of an annotated image, into which every format is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pycocotools import mask as rle


@dataclass(frozen=True)
class Segment:
    """Pixels of one class.

    Attributes:
        label: class, as the tool names it.
        mask: COCO's compressed RLE of the image's size, {"size": [height, width], "counts": bytes}.
        instance: True for one object, False for a region that may hold several objects or none (a
            semantic label), None if the format does not tell: then the kind of the class decides.
        is_crowd: whether it is a group of things that are not told apart.
        is_doubtful: whether the tool may mark every mask that is not a polygon as a crowd.
        is_box: whether the mask is a box, filled, and not the outline of an object.
    """

    label: str
    mask: dict
    instance: bool | None = None
    is_crowd: bool = False
    is_doubtful: bool = False
    is_box: bool = False

    def pixels(self) -> np.ndarray:
        """Return the mask as bool [height, width]."""
        return rle.decode(self.mask).astype(bool)


@dataclass(frozen=True)
class AnnotatedImage:
    """An image and its segments.

    Attributes:
        file: existing image file.
        name: path below the folder of the images, by which results are named.
        height, width: size in pixels.
        segments: in the order of painting; a later one covers an earlier one where both lie.
        left_out: kinds of shapes that have no area, one for each shape.
        written: path that the annotations give, if the image was found under another.
    """

    file: Path
    name: str
    height: int
    width: int
    segments: Sequence[Segment] = ()
    left_out: Sequence[str] = ()
    written: str | None = None
