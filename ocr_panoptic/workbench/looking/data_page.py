"""The page that shows a data set: an HTML file, and a folder of pictures beside it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ocr_panoptic.formats.pictures import Color
from ocr_panoptic.visualization.overlays import draw_segments, resize_picture

from .templates import TEMPLATES

CARD_SIDE = 320  # longer side of a picture in the list of all, pixels
CROP_SIDE = 220


@dataclass(frozen=True)
class ClassRow:
    """
    Attributes:
        kind: "thing", "stuff" or, of semantic data, "".
        color: CSS.
        images: that show the class.
        segments: of it; None for semantic data.
        share: percent of the pixels that are not void.
        areas: 10th, 50th and 90th percentile of the pixels of its segments; None without any.
    """

    name: str
    kind: str
    color: str
    images: int
    segments: int | None
    share: float
    areas: tuple[float, float, float] | None


class Crop(NamedTuple):
    """
    Attributes:
        src: of the picture, relative to the page.
        title, caption: below it.
    """

    src: str
    title: str
    caption: str


class Pair(NamedTuple):
    """Two images that are nearly equal, and a caption."""

    first: Crop
    second: Crop
    caption: str


class CropGroup(NamedTuple):
    """
    Attributes:
        total: of all, of which ``crops`` are the first.
    """

    title: str
    note: str
    total: int
    crops: Sequence[Crop]


@dataclass(frozen=True)
class DataPage:
    """The contents of the page; pictures are names relative to it.

    Attributes:
        cards: label -> number, the headline.
        images: of each image "name", "size", "picture" (the number in its files' names), "void"
            (percent), "segments", "things", "flags" and the places of its "classes".
        folder: of the pictures, relative to the page.
        sizes: (text, images, percent of the largest number).
        empty: images without things; None for semantic data.
        duplicates: pairs within the data set, leaks: with the one that it was compared with.
        samples: of the augmentation, a row of pictures for each image.
        faults: of files.
    """

    dataset: str
    description: str
    cards: Mapping[str, Any]
    classes: Sequence[ClassRow]
    images: Sequence[Mapping[str, Any]]
    folder: str
    findings: str
    sizes: Sequence[tuple[str, int, float]]
    empty: CropGroup | None
    rare: Sequence[CropGroup]
    absent: Sequence[str]
    suspicious: Sequence[CropGroup]
    compared_with: str
    leaks: Sequence[Pair]
    num_leaks: int
    duplicates: Sequence[Pair]
    num_duplicates: int
    equal_note: str
    samples: Sequence[tuple[str, Sequence[Crop]]]
    faults: Sequence[str]

    def render(self) -> str:
        """An HTML document, which loads the pictures of its folder and nothing else."""
        largest = max((row.areas[2] for row in self.classes if row.areas), default=1.0)
        decades = max(1, math.ceil(math.log10(max(largest, 10))))
        return TEMPLATES.get_template("data_page.html").render(
            **vars(self),
            most_images=max((row.images for row in self.classes), default=1) or 1,
            most_segments=max((row.segments or 0 for row in self.classes), default=1) or 1,
            most_share=max((row.share for row in self.classes), default=1) or 1,
            decades=decades,
            on_axis=lambda area: round(100 * math.log10(max(area, 1)) / decades, 2),
            is_panoptic=self.empty is not None,
        )


def card_pictures(
    image: np.ndarray, ids: np.ndarray | None, colors: Mapping[int, Color]
) -> tuple[np.ndarray, np.ndarray | None]:
    """The image and its segments over it, small enough for the list of all.

    Args:
        image: uint8 [H, W, 3] RGB.
        ids: int32 [H, W], or None without a truth.
        colors: of the segments; others are void.
    """
    height, width = _within(image.shape[:2], CARD_SIDE)
    small = resize_picture(image, height, width, smooth=True)
    if ids is None:
        return small, None
    ids = resize_picture(ids.astype(np.int32), height, width, smooth=False)
    return small, draw_segments(small, ids, colors, opacity=0.6)


def crop_picture(
    image: np.ndarray, ids: np.ndarray, box: tuple[int, int, int, int], marked: Sequence[int]
) -> np.ndarray:
    """Segments in their surroundings, marked by their colour and outline.

    Args:
        image: uint8 [H, W, 3] RGB.
        ids: int32 [H, W].
        box: of the segments: x, y, width, height.
        marked: their ids, two at most.
    """
    x, y, width, height = box
    around = max(width, height, 24) // 2 + 4
    rows = slice(max(0, y - around), y + height + around)
    columns = slice(max(0, x - around), x + width + around)
    image, ids = image[rows, columns], ids[rows, columns]
    scale = CROP_SIDE / max(image.shape[:2])
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    picture = resize_picture(image, height, width, smooth=True)
    ids = resize_picture(ids.astype(np.int32), height, width, smooth=False)
    place = np.zeros(ids.shape, np.int32)
    for number, marked_id in enumerate(marked, 1):
        place[ids == marked_id] = number
    drawn = draw_segments(picture, place, {1: (255, 64, 64), 2: (64, 128, 255)}, opacity=0.45)
    # Only the marked segments and their outlines; the rest as it is.
    inside = place > 0
    shown = inside.copy()
    for axis in (0, 1):
        for step in (-1, 1):
            shown |= np.roll(inside, step, axis)
    return np.where(shown[..., None], drawn, picture)


def _within(size: tuple[int, int], side: int) -> tuple[int, int]:
    scale = min(1.0, side / max(size))
    return tuple(max(1, round(length * scale)) for length in size)
