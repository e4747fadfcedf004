"""An annotated image: the common form into which every format is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pycocotools import mask as rle


@dataclass(frozen=True)
class Segment:
    """
    A region of an image with one class.

    Attributes:
        label: the tool's name of the class.
        mask: COCO's compressed RLE of the image's size, {"size": [height, width], "counts": bytes}.
        instance: True for a single object, False for a region with any number of objects (a
            semantic label), None if the format does not say it and the class's kind decides.
        is_crowd: whether this is a group of things without separate outlines.
        is_doubtful: whether the tool may have marked the mask as a crowd only because it is not a
            polygon.
        is_box: whether the mask is a filled box instead of an object's outline.
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
    """
    An image and its segments.

    Attributes:
        file: existing image file.
        name: path below the folder of images; results are named after it.
        height, width: size in pixels.
        segments: segments in painting order; later segments cover earlier segments.
        left_out: kind of each shape without area.
        written: image's path in the annotations, if the image was found under another path.
    """

    file: Path
    name: str
    height: int
    width: int
    segments: Sequence[Segment] = ()
    left_out: Sequence[str] = ()
    written: str | None = None
