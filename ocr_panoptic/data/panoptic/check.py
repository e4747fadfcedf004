"""Check a panoptic data set: its JSON, panoptic PNGs and images must agree, pixel by pixel."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.data.findings import Findings, thin_faults
from ocr_panoptic.formats.coco_panoptic import MAX_ID
from ocr_panoptic.formats.pictures import PictureSize, read_size
from ocr_panoptic.formats.segment_runs import SegmentRuns, SegmentStatistics

from .annotations import PanopticImage
from .source import PanopticSource

FIRST = 5  # number of images to search for swapped channels
SLACK = 2  # pixels by which boxes in a JSON may be too small: Datumaro leaves out the last row


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

    for image in images[:FIRST]:
        png, listed = source.files(image)[1], {segment["id"] for segment in image.segments}
        with suppress(OSError, ValueError):  # check_image reports it
            ids = {*np.unique(source.read_segments(png)).tolist()} - {0}
            swapped = {(n & 255) << 16 | n & 0xFF00 | n >> 16 for n in ids}
            if not ids <= listed and swapped <= listed:
                yield (
                    f"{png}: red and blue are swapped, as OpenCV swaps them: only then its colours "
                    "are the ids in segments_info. Swap them back in all PNGs: "
                    "cv2.imwrite(path, cv2.imread(path)[..., ::-1])"
                )
                return


def checker(source: PanopticSource) -> Callable[[PanopticImage], Findings]:
    """Return a picklable function that checks one image of the source."""
    things = frozenset(c.id for c in source.categories() if c.isthing)
    return partial(check_image, source, things)


def joint_faults(*_: object) -> tuple[str, ...]:
    """Return (): all faults of panoptic data belong to single images."""
    return ()


def warnings(
    source: PanopticSource, images: list[PanopticImage], findings: Sequence[Findings]
) -> Iterator[str]:
    """Yield warnings about classes without segments, crowd-only classes, and data without stuff."""
    classes = source.classes()
    present = {key for image in findings for key in image.classes}
    if lost := [name for key, (name, _) in classes.items() if key not in present]:
        yield f"no segment is {first_few(lost)}."
    for what, numbers in (
        ("have no pixel in their PNGs and are left out", [image.hidden for image in findings]),
        ("are smaller in their PNGs than in the JSON", [image.cut for image in findings]),
    ):
        files = [image.png_name for image, number in zip(images, numbers) if number]
        if files and not source.hides:
            total = sum(len(image.segments) for image in images)
            yield (
                f"{sum(numbers)} of {total} segments {what} ({first_few(files)}). The PNGs count. "
                "Do others lie above them, or do PNGs and JSON not belong together?"
            )
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
    differing, hidden, cut = _compare_segments(image, png, drawn)
    count = len(objects) - crowds.total()
    return Findings(
        faults + differing, size, classes, photo, count, crowds=crowds, hidden=hidden, cut=cut
    )


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


def _compare_segments(
    image: PanopticImage, path: Path, drawn: dict[int, SegmentStatistics]
) -> tuple[list[str], int, int]:
    """
    Compare the segments of the JSON with those of the PNG.

    Return the faults, the number of segments without a pixel, and the number of segments that lie
    inside the area and box of the JSON, because other segments cover a part of them.
    """
    listed = {segment["id"]: segment for segment in image.segments}
    faults, hidden, cut = [], 0, 0
    for number in sorted(drawn.keys() - listed.keys()):
        pixels = f"segment {number} covers {drawn[number].area} pixels"
        faults.append(f"{path}: {pixels} but is not in the JSON's segments_info.")
    for number, segment in listed.items():
        if number > MAX_ID:
            faults.append(f"{path}: segment {number}: the ids of a PNG end at {MAX_ID}.")
        elif number not in drawn:
            hidden += 1
        else:
            area, box = drawn[number]
            claimed = segment.get("area", area), segment.get("bbox", box)
            if claimed == (area, box):
                continue
            if _may_be_cut(claimed, area, box):
                cut += 1
                continue
            for key, ours, theirs in zip(("area", "bbox"), (area, box), claimed):
                if ours != theirs:
                    both = f"{theirs} in the JSON, {ours} in the PNG"
                    fault = f"{key} is {both}; the JSON need not have it."
                    faults.append(f"{path}: segment {number}: {fault}")
    return faults, hidden, cut


def _may_be_cut(claimed: tuple[Any, Any], area: int, box: list[int]) -> bool:
    """Return whether a segment's pixels lie inside the area and box that the JSON claims."""
    try:
        x, y, width, height = claimed[1]
        low, high = (x, y), (x + width, y + height)
        inside = all(a - SLACK <= b for a, b in zip(low, box))
        ends = (box[0] + box[2], box[1] + box[3])
        return claimed[0] >= area and inside and all(b <= a + SLACK for a, b in zip(high, ends))
    except (TypeError, ValueError):
        return False
