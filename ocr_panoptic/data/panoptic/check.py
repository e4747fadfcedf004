"""Check a panoptic data set: its JSON, panoptic PNGs and images must agree, pixel by pixel."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.data.findings import Look, thin_faults
from ocr_panoptic.formats.coco_panoptic import MAX_ID
from ocr_panoptic.formats.pictures import PictureSize, read_size
from ocr_panoptic.formats.segment_runs import SegmentRuns, SegmentStatistics

from .annotations import PanopticImage
from .source import PanopticSource


def general_faults(source: PanopticSource, images: list[PanopticImage]) -> Iterator[str]:
    """Yield one fault, instead of a fault per image, if all images or all PNGs are missing."""
    for k, key in enumerate(("images", "segments")):
        files = [source.files(image)[k] for image in images]
        if len(files) > 1 and not any(map(os.path.exists, files)):
            yield (
                f"{source.split.annotations}: of its {len(files)} images none has a file in "
                f"{getattr(source.split, key)}, such as {files[0]}. Give {source.name} annotations "
                f"and {key} of the same split, with file names relative to that folder."
            )


def checker(source: PanopticSource) -> Callable[[PanopticImage], Look]:
    """Return a picklable function that checks one image of the source."""
    things = frozenset(c.id for c in source.categories() if c.isthing)
    return partial(check_image, replace(source), things)  # replace drops the cached JSON


def warnings(source: PanopticSource, looks: Sequence[Look]) -> Iterator[str]:
    """Yield warnings about classes without segments, crowd-only classes, and data without stuff."""
    classes = source.classes()
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
        left_out = len(source.content.images) - len(looks)
        void = total - sum(area for look in looks for _, area in look.shown.values())
        yield (
            f"there is no class of stuff, and {void / total:.0%} of the pixels are void: the "
            "semantic head (OCR) has nothing to tell apart, false alarms in the void are not "
            f"counted, and images without things are left out ({left_out} here). If these pixels "
            "are a background, make them stuff: ocr-panoptic import ... --rest background."
        )


def check_image(source: PanopticSource, things: frozenset[int], image: PanopticImage) -> Look:
    """
    Decode an image and its panoptic PNG, and check both against the JSON.

    Args:
        things: ids of the thing categories.
    """
    picture, png = source.split.images / image.file_name, source.split.segments / image.png_name
    size = image.height, image.width
    shown: dict[int, tuple[int, int]] = {}
    faults: list[str] = []
    photo = _photo(image, picture, source.channels, faults)
    try:
        ids = source.read_segments(png)
    except (FileNotFoundError, ValueError) as error:
        return Look([*faults, str(error)], size, shown, photo)
    if ids.shape != size:
        faults.append(
            f"{png}: the PNG of image {image.id!r} has {ids.shape[1]}x{ids.shape[0]} pixels, "
            f"the image {image.width}x{image.height} (width x height)."
        )
        return Look(faults, size, shown, photo)
    found = SegmentRuns(ids).statistics
    for segment in image.segments:
        if segment["id"] in found:
            number, pixels = shown.get(segment["category_id"], (0, 0))
            shown[segment["category_id"]] = number + 1, pixels + found[segment["id"]].area
    objects = [s for s in image.segments if s["category_id"] in things and s["id"] in found]
    crowds = Counter(s["category_id"] for s in objects if s.get("iscrowd"))
    faults += _segment_faults(image, png, found, source.hides)
    return Look(faults, size, shown, photo, len(objects) - crowds.total(), crowds=crowds)


def _photo(
    image: PanopticImage, path: Path, channels: int, faults: list[str]
) -> PictureSize | None:
    if not path.exists():
        others = sorted(p.name for p in path.parent.glob("*") if p.stem == path.stem)
        hint = f" There is {', '.join(others)}: correct file_name in the JSON." if others else ""
        faults.append(f"{path}: image {image.id!r} not found.{hint}")
        return None
    try:
        photo = read_size(path, channels)
    except ValueError as error:
        faults.append(f"{path}: image {image.id!r} {error}.")
        return None
    faults += thin_faults(path, photo)
    if (photo.width, photo.height) != (image.width, image.height):
        faults.append(
            f"{path}: image {image.id!r} has {photo.width}x{photo.height} pixels{photo.note}, "
            f"its annotation {image.width}x{image.height} (width x height)."
        )
    return photo


def _segment_faults(
    image: PanopticImage, path: Path, found: dict[int, SegmentStatistics], hides: bool
) -> Iterator[str]:
    listed = {segment["id"]: segment for segment in image.segments}
    for number in sorted(found.keys() - listed.keys()):
        pixels = f"segment {number} covers {found[number].area} pixels"
        yield f"{path}: {pixels} but is not in the JSON's segments_info."
    for number, segment in listed.items():
        where = f"{path}: segment {number}"
        if number > MAX_ID:
            yield f"{where}: the ids of a PNG end at {MAX_ID}."
        elif number not in found:
            if not hides:
                yield f"{where} of the JSON has no pixel in the PNG."
        else:
            for key, value in found[number]._asdict().items():
                if segment.get(key, value) != value:
                    both = f"{segment[key]} in the JSON, {value} in the PNG"
                    yield f"{where}: {key} is {both}; the JSON need not have it."
