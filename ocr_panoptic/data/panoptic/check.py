"""The check of a panoptic data set: JSON, panoptic PNGs and images must agree, pixel by pixel."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ocr_panoptic.coco_panoptic import MAX_ID, read_panoptic_png
from ocr_panoptic.data.faults import raise_if_any
from ocr_panoptic.data.parallel import map_with_progress
from ocr_panoptic.pictures import read_size

from .annotations import AnnotatedImage, PanopticJson, read_panoptic_json
from .manifest import RawSplit
from .segments import segment_statistics


def check_split(split: RawSplit, workers: int | None = None) -> PanopticJson:
    """Check one split of a data set in COCO panoptic format.

    Args:
        split: images of any format that Pillow reads, and their annotations.
        workers: processes, see :func:`map_with_progress`.

    Returns:
        the JSON's content.

    Raises:
        FileNotFoundError: a folder or the JSON does not exist.
        DataFaults: ids that are not unique, JSON ids that are not the PNG's ids, areas or boxes
            that are not the PNG's, sizes that differ, unknown categories, missing, broken or
            truncated files. All faults are reported, each with file and id.
    """
    for folder, what in ((split.images, "images"), (split.panoptic_root, "panoptic PNGs")):
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: folder of {what} not found.")
    content = read_panoptic_json(split.panoptic_json)
    check = partial(check_image, split=split)
    found = map_with_progress(check, content.images, f"check {split.panoptic_json}", workers)
    raise_if_any([fault for faults in found for fault in faults])
    return content


def check_image(image: AnnotatedImage, split: RawSplit) -> list[str]:
    """Faults of one image and its panoptic PNG."""
    picture, png = split.images / image.file_name, split.panoptic_root / image.png_name
    return [*_picture_faults(image, picture), *_segment_faults(image, png)]


def _picture_faults(image: AnnotatedImage, path: Path) -> Iterator[str]:
    if not path.is_file():
        others = sorted(p.name for p in path.parent.glob("*") if p.stem == path.stem)
        hint = f" There is {', '.join(others)}: correct file_name in the JSON." if others else ""
        yield f"{path}: image {image.id!r} not found.{hint}"
        return
    try:
        width, height, note = read_size(path)
    except ValueError as error:
        yield f"{path}: image {image.id!r} {error}."
        return
    if (width, height) != (image.width, image.height):
        yield (
            f"{path}: image {image.id!r} has {width}x{height} pixels{note}, "
            f"the JSON says {image.width}x{image.height} (width x height)."
        )


def _segment_faults(image: AnnotatedImage, path: Path) -> Iterator[str]:
    try:
        ids = read_panoptic_png(path)
    except (FileNotFoundError, ValueError) as error:
        yield str(error)
        return
    height, width = ids.shape
    if (width, height) != (image.width, image.height):
        yield (
            f"{path}: the PNG of image {image.id!r} has {width}x{height} pixels, "
            f"the image {image.width}x{image.height} (width x height)."
        )
        return
    found = segment_statistics(ids)
    listed = {segment["id"]: segment for segment in image.segments}
    for number in sorted(found.keys() - listed.keys()):
        pixels = f"segment {number} covers {found[number].area} pixels"
        yield f"{path}: {pixels} but is not in the JSON's segments_info."
    for number, segment in listed.items():
        where = f"{path}: segment {number}"
        if number > MAX_ID:
            yield f"{where}: the ids of a PNG end at {MAX_ID}."
        elif number not in found:
            yield f"{where} of the JSON has no pixel in the PNG."
        else:
            for key, value in found[number]._asdict().items():
                if segment.get(key, value) != value:
                    yield f"{where}: {key} is {segment[key]} in the JSON, {value} in the PNG."
