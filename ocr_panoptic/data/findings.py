"""What the check of data finds in each image, and its warnings about data without faults."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ocr_panoptic.formats.labels import label_text
from ocr_panoptic.formats.pictures import PictureSize

from .faults import first_few

# The largest share of white in a 12-bit photo stored in 16 bits, or read from that as 8 bits.
DARK = 1 / 16


class Look(NamedTuple):
    """
    The result of looking at an image and its labels.

    Attributes:
        faults: faults, each with the file and id.
        size: height and width.
        shown: class -> number of segments (0 for semantic data) and of pixels.
        photo: facts about the image file; None if it cannot be read.
        things: number of things, without crowds.
        crowds: category of things -> number of its crowds.
        ignored: raw label -> number of ignored pixels.
        is_near: the labels are only the nearest to the values of their file.
    """

    faults: list[str]
    size: tuple[int, int]
    shown: Mapping[int, tuple[int, int]]
    photo: PictureSize | None = None
    things: int = 0
    ignored: Mapping[int, int] = {}
    is_near: bool = False
    crowds: Mapping[int, int] = {}


def photo_warnings(files: Sequence[str], looks: Sequence[Look], channels: int) -> Iterator[str]:
    """
    Yield warnings about the image files of a split.

    Args:
        files: the image file of each look.
    """
    photos = [(file, look.photo) for file, look in zip(files, looks, strict=True) if look.photo]
    depths = Counter(photo.bits > 8 for _, photo in photos)
    for is_deep, number in depths.items():
        found = [p.brightness for _, p in photos if (p.bits > 8) == is_deep and p.brightness != 0]
        dark = [value for value in found if value is not None and value <= DARK]
        # A single 8-bit photo may have been taken at night.
        if dark and (is_deep or len(dark) == len(found)):
            which = f"all {number}" if len(dark) == len(found) else f"{len(dark)} of {number}"
            yield (
                f"the brightest value of {which} images of {16 if is_deep else 8} bits is "
                f"{max(dark):.1%} of white, so that they look black: are they of a sensor with 10 "
                f"or 12 bits? Multiply their values by {2 ** int(math.log2(1 / max(dark)))}."
            )
    if channels == 1 and len(depths) == 2:
        yield (
            f"{depths[True]} images have 16 bits and {depths[False]} have 8, and their "
            "values are not rescaled: convert them to one scale."
        )
    if turned := [file for file, photo in photos if photo.is_turned]:
        yield (
            f"EXIF data turn {len(turned)} images without a change of their size "
            f"({first_few(turned)}), and their labels are expected to fit the turned image. If a "
            "tool drew them on the stored pixels, remove the EXIF data."
        )


def label_warnings(
    looks: Sequence[Look], classes: Mapping[int, str], default_ignore: bool
) -> Iterator[str]:
    """
    Yield warnings about the labels of a semantic split.

    Args:
        classes: training label -> name.
        default_ignore: the data do not say which raw label is ignored.
    """
    ignored: Counter[int] = Counter()
    pixels: Counter[int] = Counter()
    for look in looks:
        ignored.update(look.ignored)
        pixels.update({label: area for label, (_, area) in look.shown.items()})
    lost = {label: name for label, name in classes.items() if not pixels[label]}
    if lost:
        total = sum(height * width for height, width in (look.size for look in looks))
        shares = [f"{n / total:.2%} of the pixels are {label_text(v)}" for v, n in ignored.items()]
        what = f", and {' and '.join(shares[:3])}, ignored" if shares else ""
        if default_ignore and shares:
            what += f" as nothing says otherwise; is that {' or '.join(list(lost.values())[:5])}"
            if len(lost) == len(ignored) == 1:
                raw = {**{label: label for label in classes}, next(iter(lost)): next(iter(ignored))}
                listed = (
                    f"{{name: {name}, labels: {raw[label]}}}" for label, name in classes.items()
                )
                what += f"? Then write classes: [{', '.join(listed)}]"
            else:
                what += "? Then give each class its labels, such as {name: a, labels: 255}"
        alone = "; a model learns nothing from one class" if len(lost) == len(classes) - 1 else ""
        yield f"no pixel is {first_few(list(lost.values()))}{alone}{what}."
    if near := sum(look.is_near for look in looks):
        yield (
            f"{near} label images hold other values than labels, as JPEG files and smoothed "
            "borders do. The nearest labels are taken: borders may be off by a pixel. Export PNGs "
            "that hold labels only."
        )


def panoptic_warnings(
    looks: Sequence[Look], classes: Mapping[int, tuple[str, str]], left_out: int
) -> Iterator[str]:
    """
    Yield warnings about the segments of a panoptic split.

    Args:
        classes: category id -> name and kind, "thing" or "stuff".
        left_out: number of images that hold only void.
    """
    shown = {key for look in looks for key in look.shown}
    if lost := [name for key, (name, _) in classes.items() if key not in shown]:
        yield f"no segment is {first_few(lost)}."
    segments: Counter[int] = Counter()
    crowds: Counter[int] = Counter()
    for look in looks:
        segments.update({key: number for key, (number, _) in look.shown.items()})
        crowds.update(look.crowds)
    if groups := [classes[key][0] for key in crowds if crowds[key] == segments[key]]:
        yield (
            f"all segments of {first_few(groups)} are crowds (iscrowd 1), which are groups of "
            "objects that are not told apart, and not trained on."
        )
    if all(kind == "thing" for _, kind in classes.values()):
        total = sum(height * width for height, width in (look.size for look in looks))
        void = total - sum(area for look in looks for _, area in look.shown.values())
        yield (
            f"there is no class of stuff, and {void / total:.0%} of the pixels are void: the "
            "semantic head (OCR) has nothing to tell apart, false alarms in the void are not "
            f"counted, and images without things are left out ({left_out} here). If these pixels "
            "are a background, make them stuff: ocr-panoptic import ... --rest background."
        )
