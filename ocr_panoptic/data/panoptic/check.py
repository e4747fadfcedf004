"""Check a panoptic data set: its JSON, panoptic PNGs and images must agree, pixel by pixel."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
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
SWAPPED = (
    "red and blue are swapped, as when OpenCV saves an RGB array. The colours match the ids in "
    "segments_info only after swapping red and blue back."
)
SWAP = "cv2.imwrite(path, cv2.imread(path)[..., ::-1])"
SLACK = 2  # pixels by which boxes in a JSON may be too small: Datumaro leaves out the last row


def general_faults(source: PanopticSource, images: list[PanopticImage]) -> Iterator[str]:
    """Yield one fault, instead of a fault per image, if all images or all PNGs are missing."""
    for k, key in enumerate(("images", "segments")):
        files = [source.files(image)[k] for image in images]
        fix = (
            f" For {source.name}, give annotations and {key} of the same split. File names in the "
            f"JSON must be relative to the folder of {key}."
        )
        if len(files) > 1 and not any(map(os.path.exists, files)):
            yield (
                f"{source.split.annotations}: the JSON lists {len(files)} images, but "
                f"{getattr(source.split, key)} has none of their files. The first expected file is "
                f"{files[0]}.{_found_beside(Path(files[0])) or fix}"
            )

    read = []
    for image in images[:FIRST]:
        png, listed = source.files(image)[1], {segment["id"] for segment in image.segments}
        with suppress(OSError, ValueError):  # check_image reports it
            ids = {*np.unique(source.read_segments(png)).tolist()} - {0}
            read.append((png, _is_swapped(ids, listed)))
    if read and all(swapped for _, swapped in read):
        yield f"{read[0][0]}: {SWAPPED} If this is so in all PNGs, correct them with {SWAP}"


def _is_swapped(ids: Collection[int], listed: Collection[int]) -> bool:
    """Return whether the ids of a PNG are those of the JSON with red and blue swapped."""
    swapped = {(n & 255) << 16 | n & 0xFF00 | n >> 16 for n in ids}
    return not {*ids} <= {*listed} and swapped <= {*listed}


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
        yield f"these classes have no segments: {first_few(lost)}."
    files = [png.png_name for png, image in zip(images, findings) if image.covered]
    if files and not source.hides:
        yield (
            f"{sum(image.covered for image in findings)} of "
            f"{sum(len(i.segments) for i in images)} segments have fewer pixels in the PNG than "
            f"in the JSON, or no pixels ({first_few(files)}). The PNG is used. Unless other "
            "segments cover them, check that the PNGs belong to this JSON."
        )
    segments: Counter[int] = Counter()
    crowds: Counter[int] = Counter()
    for image in findings:
        segments.update({key: number for key, (number, _) in image.classes.items()})
        crowds.update(image.crowds)
    if groups := [classes[key][0] for key in crowds if crowds[key] == segments[key]]:
        yield (
            f"all segments of {first_few(groups)} are crowds (iscrowd 1), which are groups of "
            "objects without individual masks. Crowds are not used for training."
        )
    if all(kind == "thing" for _, kind in classes.values()):
        total = sum(height * width for height, width in (image.size for image in findings))
        left_out = len(source.content.images) - len(findings)
        void = total - sum(area for image in findings for _, area in image.classes.values())
        yield (
            f"there are no stuff classes, and {void / total:.0%} of the pixels are void. So the "
            "semantic head (OCR) has no classes to distinguish, false detections in void are not "
            f"counted, and images without things are left out ({left_out} here). If the void "
            "pixels are background, make them a stuff class; ocr-panoptic import does so with "
            "--rest background."
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
        return Findings([*faults, f"{error}{_found_beside(png)}"], size, classes, photo)
    if ids.shape != size:
        faults.append(
            f"{png}: the PNG of image {image.id!r} has {ids.shape[1]}x{ids.shape[0]} pixels, but "
            f"the JSON says {image.width}x{image.height} (width x height)."
        )
        return Findings(faults, size, classes, photo)
    drawn = SegmentRuns(ids).statistics
    for segment in image.segments:
        if segment["id"] in drawn:
            number, pixels = classes.get(segment["category_id"], (0, 0))
            classes[segment["category_id"]] = number + 1, pixels + drawn[segment["id"]].area
    objects = [s for s in image.segments if s["category_id"] in things and s["id"] in drawn]
    crowds = Counter(s["category_id"] for s in objects if s.get("iscrowd"))
    differing, covered = _compare_segments(image, png, drawn)
    number = len(objects) - crowds.total()
    return Findings(
        faults + differing, size, classes, photo, number, crowds=crowds, covered=covered
    )


def _found_beside(path: Path) -> str:
    """Name the files that differ from a missing file only in the suffix; "" if there are none."""
    if path.exists():
        return ""
    others = sorted(p.name for p in path.parent.glob("*") if p.stem == path.stem)
    return f" Found {', '.join(others)}: correct file_name in the JSON." if others else ""


def _photo(
    image: PanopticImage, path: Path, channels: int, faults: list[str]
) -> PictureSize | None:
    if not path.exists():
        faults.append(f"{path}: image {image.id!r} not found.{_found_beside(path)}")
        return None
    try:
        photo = read_size(path, channels)
    except ValueError as error:
        faults.append(f"{path}: image {image.id!r} {error}.")
        return None
    faults += thin_faults(path, photo)
    if (photo.width, photo.height) != (image.width, image.height):
        faults.append(
            f"{path}: image {image.id!r} has {photo.width}x{photo.height} pixels{photo.note}, but "
            f"the JSON says {image.width}x{image.height} (width x height)."
        )
    return photo


def _compare_segments(
    image: PanopticImage, path: Path, drawn: dict[int, SegmentStatistics]
) -> tuple[list[str], int]:
    """
    Compare the segments of the JSON with those of the PNG.

    Return the faults, and the number of segments that others may cover: they have no pixel, or lie
    inside the area and box of the JSON.
    """
    listed = {segment["id"]: segment for segment in image.segments}
    faults, covered = [], 0
    if _is_swapped(drawn.keys(), listed.keys()):
        return [f"{path}: {SWAPPED} Correct only the PNGs that are listed here, with {SWAP}"], 0
    for number in sorted(drawn.keys() - listed.keys()):
        pixels = f"segment {number} covers {drawn[number].area} pixel(s)"
        faults.append(f"{path}: {pixels}, but the JSON's segments_info does not list it.")
    for number, segment in listed.items():
        if number > MAX_ID:
            faults.append(f"{path}: segment {number}: expected an id of at most {MAX_ID}.")
        elif number not in drawn:
            covered += 1
        else:
            actual = drawn[number]._asdict()
            claimed = {key: segment.get(key, value) for key, value in actual.items()}
            if claimed != actual and _is_inside(actual, claimed):
                covered += 1
                continue
            for key in (key for key in actual if claimed[key] != actual[key]):
                both = f"{claimed[key]} in the JSON but {actual[key]} in the PNG"
                fault = f"{key} is {both}. Correct the JSON, or remove this optional key."
                faults.append(f"{path}: segment {number}: {fault}")
    return faults, covered


def _is_inside(actual: dict[str, Any], claimed: dict[str, Any]) -> bool:
    """Return whether a segment's area and box lie inside those that the JSON claims."""
    with suppress(TypeError, ValueError):
        (x, y, width, height), (left, top, columns, rows) = actual["bbox"], claimed["bbox"]
        starts = left - SLACK <= x and top - SLACK <= y
        ends = x + width <= left + columns + SLACK and y + height <= top + rows + SLACK
        return starts and ends and actual["area"] <= claimed["area"]
    return False
