"""The check of a panoptic data set: JSON, panoptic PNGs and images must agree, pixel by pixel."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..panoptic_png import MAX_ID, read_panoptic_png
from .faults import raise_if_any
from .panoptic_json import AnnotatedImage, PanopticJson, read_panoptic_json
from .parallel import map_with_progress
from .pictures import read_size
from .segments import segment_statistics


def check_split(
    images: Path, panoptic_json: Path, panoptic_root: Path, workers: int | None = None
) -> PanopticJson:
    """Check one split of a data set in COCO panoptic format.

    Args:
        images: folder of images, any format that Pillow reads.
        panoptic_json: its panoptic JSON.
        panoptic_root: folder of its panoptic PNGs.
        workers: processes, see :func:`map_with_progress`.

    Returns:
        the JSON's content.

    Raises:
        FileNotFoundError: a folder or the JSON does not exist.
        DataFaults: ids that are not unique, JSON ids that are not the PNG's ids, areas or boxes
            that are not the PNG's, sizes that differ, unknown categories, missing, broken or
            truncated files. All faults are reported, each with file and id.
    """
    for folder, what in ((images, "images"), (panoptic_root, "panoptic PNGs")):
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: folder of {what} not found.")
    content = read_panoptic_json(panoptic_json)
    check = partial(check_image, images=images, panoptic_root=panoptic_root)
    found = map_with_progress(check, content.images, f"check {panoptic_json}", workers)
    raise_if_any([fault for faults in found for fault in faults])
    return content


def check_image(image: AnnotatedImage, images: Path, panoptic_root: Path) -> list[str]:
    """Faults of one image and its panoptic PNG."""
    return _check_picture(image, images) + _check_segments(image, panoptic_root)


def _check_picture(image: AnnotatedImage, images: Path) -> list[str]:
    path = images / image.file_name
    if not path.is_file():
        return [f"{path}: image {image.id!r} not found.{_same_stem(path)}"]
    try:
        width, height, note = read_size(path)
    except ValueError as error:
        return [f"{path}: image {image.id!r} {error}."]
    if (width, height) != (image.width, image.height):
        return [
            f"{path}: image {image.id!r} has {width}x{height} pixels{note}, "
            f"the JSON says {image.width}x{image.height} (width x height)."
        ]
    return []


def _same_stem(path: Path) -> str:
    others = sorted(p.name for p in path.parent.glob("*") if p.stem == path.stem)
    return f" There is {', '.join(others)}: correct file_name in the JSON." if others else ""


def _check_segments(image: AnnotatedImage, panoptic_root: Path) -> list[str]:
    path = panoptic_root / image.png_name
    try:
        ids = read_panoptic_png(path)
    except (FileNotFoundError, ValueError) as error:
        return [str(error)]
    height, width = ids.shape
    if (width, height) != (image.width, image.height):
        return [
            f"{path}: the PNG of image {image.id!r} has {width}x{height} pixels, "
            f"the image {image.width}x{image.height} (width x height)."
        ]
    found = segment_statistics(ids)
    listed = {segment["id"]: segment for segment in image.segments}
    faults = [
        f"{path}: segment {number} covers {found[number].area} pixels "
        "but is not in the JSON's segments_info."
        for number in sorted(found.keys() - listed.keys())
    ]
    for number, segment in listed.items():
        if number > MAX_ID:
            faults.append(f"{path}: segment {number}: the ids of a PNG end at {MAX_ID}.")
        elif number not in found:
            faults.append(f"{path}: segment {number} of the JSON has no pixel in the PNG.")
        else:
            faults += [
                f"{path}: segment {number}: {key} is {segment[key]} in the JSON, "
                f"{value} in the PNG."
                for key, value in found[number]._asdict().items()
                if key in segment and segment[key] != value
            ]
    return faults
