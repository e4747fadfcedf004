"""Check a panoptic data set: its JSON, panoptic PNGs and images must agree, pixel by pixel."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.data.findings import Findings, thin_faults
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


def checker(source: PanopticSource) -> Callable[[PanopticImage], Findings]:
    """Return a picklable function that checks one image of the source."""
    things = frozenset(c.id for c in source.categories() if c.isthing)
    return partial(check_image, source, things)


def joint_faults(
    source: PanopticSource, images: list[PanopticImage], findings: Sequence[Findings]
) -> Iterator[str]:
    return iter(())


def warnings(
    source: PanopticSource, images: list[PanopticImage], findings: Sequence[Findings]
) -> Iterator[str]:
    """Yield warnings about classes without segments, crowd-only classes, and data without stuff."""
    classes = source.classes()
    present = {key for image in findings for key in image.classes}
    if lost := [name for key, (name, _) in classes.items() if key not in present]:
        yield f"no segment is {first_few(lost)}."
    segments: Counter[int] = Counter()
    crowds: Counter[int] = Counter()
    for image in findings:
        segments.update({key: number for key, (number, _) in image.classes.items()})
        crowds.update(image.crowds)
    if groups := [classes[key][0] for key in crowds if crowds[key] == segments[key]]:
        yield (
            f"all segments of {first_few(groups)} are crowds (iscrowd 1), which are groups of "
            "objects that are not told apart, and not trained on."
        )
    if all(kind == "thing" for _, kind in classes.values()):
        total = sum(height * width for height, width in (image.size for image in findings))
        left_out = len(source.content.images) - len(findings)
        void = total - sum(area for image in findings for _, area in image.classes.values())
        yield (
            f"there is no class of stuff, and {void / total:.0%} of the pixels are void: the "
            "semantic head (OCR) has nothing to tell apart, false alarms in the void are not "
            f"counted, and images without things are left out ({left_out} here). If these pixels "
            "are a background, make them stuff: ocr-panoptic import ... --rest background."
        )


def check_image(source: PanopticSource, things: frozenset[int], image: PanopticImage) -> Findings:
    """
    Decode an image and its panoptic PNG, and check both against the JSON.

    Args:
        things: ids of the thing categories.
    """
    picture, png = source.split.images / image.file_name, source.split.segments / image.png_name
    size = image.height, image.width
    classes: dict[int, tuple[int, int]] = {}
    faults: list[str] = []
    photo = _photo(image, picture, source.channels, faults)
    try:
        ids = source.read_segments(png)
    except (FileNotFoundError, ValueError) as error:
        return Findings([*faults, str(error)], size, classes, photo)
    if ids.shape != size:
        faults.append(
            f"{png}: the PNG of image {image.id!r} has {ids.shape[1]}x{ids.shape[0]} pixels, "
            f"the image {image.width}x{image.height} (width x height)."
        )
        return Findings(faults, size, classes, photo)
    drawn = SegmentRuns(ids).statistics
    for segment in image.segments:
        if segment["id"] in drawn:
            number, pixels = classes.get(segment["category_id"], (0, 0))
            classes[segment["category_id"]] = number + 1, pixels + drawn[segment["id"]].area
    objects = [s for s in image.segments if s["category_id"] in things and s["id"] in drawn]
    crowds = Counter(s["category_id"] for s in objects if s.get("iscrowd"))
    faults += _segment_faults(image, png, drawn, source.hides)
    return Findings(faults, size, classes, photo, len(objects) - crowds.total(), crowds=crowds)


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
    image: PanopticImage, path: Path, drawn: dict[int, SegmentStatistics], hides: bool
) -> Iterator[str]:
    listed = {segment["id"]: segment for segment in image.segments}
    for number in sorted(drawn.keys() - listed.keys()):
        pixels = f"segment {number} covers {drawn[number].area} pixels"
        yield f"{path}: {pixels} but is not in the JSON's segments_info."
    for number, segment in listed.items():
        where = f"{path}: segment {number}"
        if number > MAX_ID:
            yield f"{where}: the ids of a PNG end at {MAX_ID}."
        elif number not in drawn:
            if not hides:
                yield f"{where} of the JSON has no pixel in the PNG."
        else:
            for key, value in drawn[number]._asdict().items():
                if segment.get(key, value) != value:
                    both = f"{segment[key]} in the JSON, {value} in the PNG"
                    yield f"{where}: {key} is {both}; the JSON need not have it."
