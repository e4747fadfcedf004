"""The check of a panoptic data set: JSON, panoptic PNGs and images must agree, pixel by pixel."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ocr_panoptic.data.data_file import PanopticSplit
from ocr_panoptic.data.findings import Look
from ocr_panoptic.errors import MissingFileError
from ocr_panoptic.formats.coco_panoptic import MAX_ID
from ocr_panoptic.formats.files import printable
from ocr_panoptic.formats.pictures import PictureSize, read_size
from ocr_panoptic.formats.segment_runs import SegmentRuns, SegmentStatistics

from .annotations import PanopticImage, PanopticJson, read_panoptic_json


def read_split(split: PanopticSplit) -> PanopticJson:
    """Return the JSON of a split, after checking that its folders exist."""
    for folder, what in ((split.images, "images"), (split.segments, "panoptic PNGs")):
        if not folder.is_dir():
            raise MissingFileError(
                f"{printable(folder)}: folder of {what} not found. Was it moved? Paths of a data "
                "file are relative to it."
            )
    return read_panoptic_json(split.annotations)


def check_image(
    split: PanopticSplit,
    channels: int,
    hides: bool,
    read_segments: Callable[[str | Path], np.ndarray],
    things: frozenset[int],
    image: PanopticImage,
) -> Look:
    """
    Check an image and its panoptic PNG against the JSON; both are decoded wholly.

    Faults are segment ids, areas or boxes that differ between JSON and PNG, sizes that differ, and
    missing, broken or truncated files.

    Args:
        split, channels, hides, read_segments: see :class:`.PanopticSource`.
        things: ids of the categories that are things.
    """
    picture, png = split.images / image.file_name, split.segments / image.png_name
    size = image.height, image.width
    shown: dict[int, tuple[int, int]] = {}
    faults: list[str] = []
    photo = _photo(image, picture, channels, faults)
    try:
        ids = read_segments(png)
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
    faults += _segment_faults(image, png, found, hides)
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
