"""Findings of the data check: facts about each image, and warnings about the image files."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ocr_panoptic.formats.pictures import Color, PictureSize

from .faults import first_few

# A 12-bit photo stored as 16 bits has no value above this share of white (4095 / 65535).
DARK = 1 / 16
THIN = 1000  # largest accepted ratio of an image's long side to its short side


class Findings(NamedTuple):
    """The result of checking an image and its labels."""

    faults: list[str]  # messages that name the file
    size: tuple[int, int]  # height and width
    classes: Mapping[int, tuple[int, int]]  # class -> segments (0 if semantic), pixels
    photo: PictureSize | None = None  # None if the image cannot be read
    things: int = 0  # number of things that are not crowds
    ignored: Mapping[int, int] = {}  # raw label -> number of pixels
    is_near: bool = False  # whether values are inexact, so that the nearest labels were taken
    crowds: Mapping[int, int] = {}  # id of a thing category -> number of crowds
    covered: int = 0  # number of listed segments that other segments may cover
    palette: Mapping[Color, int] = {}  # colour -> its index in the palette of the label image
    by_colour: bool = False  # whether the label image was read as colours


def thin_faults(file: Path, photo: PictureSize) -> Iterator[str]:
    """Yield a fault if an image is so thin that resizing could shrink a side to 0 pixels."""
    if max(photo.width, photo.height) > THIN * min(photo.width, photo.height):
        yield (
            f"{file}: the image has {photo.width}x{photo.height} pixels (width x height). One "
            f"side is more than {THIN:,} times the other, so resizing may shrink the short side "
            "to nothing. Crop or remove the image."
        )


def photo_warnings(
    files: Sequence[str], findings: Sequence[Findings], channels: int
) -> Iterator[str]:
    """
    Yield warnings about dark images, mixed bit depths, and images rotated by EXIF data.

    Args:
        files: path of each image.
        findings: check result of each image.
        channels: number of image channels of the data set.
    """
    checked = zip(files, findings, strict=True)
    photos = [(file, image.photo) for file, image in checked if image.photo]
    depths = Counter(photo.bits > 8 for _, photo in photos)
    for is_deep, number in depths.items():
        alike = [photo for _, photo in photos if (photo.bits > 8) == is_deep]
        values = [photo.brightness for photo in alike if photo.brightness != 0]
        dark = [value for value in values if value is not None and value <= DARK]
        # A few dark 8-bit photos can be night scenes; they are suspect only if all are dark.
        if dark and (is_deep or len(dark) == len(values)):
            which = f"all {number}" if len(dark) == len(values) else f"{len(dark)} of {number}"
            yield (
                f"{which} image(s) with {16 if is_deep else 8} bits look black: their brightest "
                f"pixel is at {max(dark):.1%} of white. If they come from a sensor with fewer "
                f"bits, multiply all values by {2 ** int(math.log2(1 / max(dark)))}."
            )
    if channels == 1 and len(depths) == 2:
        yield (
            f"found {depths[True]} 16-bit and {depths[False]} 8-bit image(s), but values are not "
            "rescaled. Convert all images to the same bit depth."
        )
    if turned := [file for file, photo in photos if photo.is_turned]:
        yield (
            f"EXIF data rotate or mirror {len(turned)} image(s) without changing their size "
            f"({first_few(turned)}). Their labels must match the rotated images. If the labels "
            "were drawn on the unrotated images, remove the EXIF data."
        )
