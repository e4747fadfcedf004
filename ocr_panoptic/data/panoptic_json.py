"""Reading of a panoptic JSON: its structure, with every fault reported.

The format is COCO's (https://cocodataset.org/#format-data): ``images``, one annotation per image
with the name of its PNG and its ``segments_info``, and ``categories``.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .categories import Category, is_id, parse_categories
from .faults import DataFaults, raise_if_any


@dataclass(frozen=True)
class AnnotatedImage:
    """An image with its annotation."""

    id: int | str
    file_name: str  # relative to the folder of images
    png_name: str  # relative to the folder of panoptic PNGs
    height: int
    width: int
    segments: list[dict]  # segments_info: id, category_id; iscrowd, area, bbox where given

    @property
    def semantic_name(self) -> str:
        """Name of the semantic PNG, relative to its folder."""
        return str(PurePosixPath(self.png_name).with_suffix(".png"))


@dataclass(frozen=True)
class PanopticJson:
    path: Path
    categories: list[Category]
    images: list[AnnotatedImage]


def read_panoptic_json(path: Path) -> PanopticJson:
    """Read a panoptic JSON and check everything that needs no image.

    Raises:
        FileNotFoundError: there is no such file.
        DataFaults: it is not a panoptic JSON, has no image, or its entries contradict one another.
    """
    content = _load(path)
    source = str(path)
    faults: list[str] = []
    try:
        categories = parse_categories(content["categories"], source)
    except DataFaults as error:
        categories = []
        faults += error.faults
    if not content["images"]:
        faults.append(f'{source}: the data set is empty, "images" holds no image.')
    images = _by_id(content["images"], "id", "image", source, faults)
    annotations = _by_id(content["annotations"], "image_id", "annotation of image", source, faults)
    if len({type(number) for number in images}) > 1:
        faults.append(f"{source}: image ids must be all integers or all texts, found both.")
    for number in annotations.keys() - images.keys():
        faults.append(f'{source}: annotation of image {number!r}: no such image in "images".')
    for number in images.keys() - annotations.keys():
        faults.append(f"{source}: image {number!r} has no annotation.")
    known = {category.id for category in categories}
    joined = []
    for number, image in images.items():
        if number in annotations and (
            _check_image(image, source, faults)
            & _check_annotation(annotations[number], known, source, faults)
        ):
            joined.append(_join(image, annotations[number]))
    _check_unique([image.file_name for image in joined], "image file", source, faults)
    _check_unique([image.semantic_name for image in joined], "PNG file", source, faults)
    raise_if_any(faults)
    return PanopticJson(path, categories, joined)


def _load(path: Path) -> dict:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: panoptic JSON not found.")
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataFaults([f"{path}: is not JSON ({error})."]) from error
    keys = ("images", "annotations", "categories")
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    wrong = [key for key in keys if key not in missing and not isinstance(content[key], list)]
    if missing or wrong:
        raise DataFaults(
            [
                f"{path}: is not a panoptic JSON: it must be an object with the lists "
                f"{', '.join(keys)}; missing or no list: {', '.join(missing + wrong)}."
            ]
        )
    first = content["annotations"][0] if content["annotations"] else {}
    if isinstance(first, dict) and "segments_info" not in first and "bbox" in first:
        raise DataFaults(
            [
                f"{path}: holds COCO instance annotations (bbox, no segments_info). Give the "
                "panoptic JSON, whose annotations have file_name and segments_info."
            ]
        )
    return content


def _by_id(
    entries: list, key: str, kind: str, source: str, faults: list[str]
) -> dict[int | str, dict]:
    """Entries by their id; faults for ids that are none or come twice."""
    result: dict[int | str, dict] = {}
    for place, entry in enumerate(entries):
        number = entry.get(key) if isinstance(entry, dict) else None
        if not is_id(number) and not (isinstance(number, str) and number):
            faults.append(
                f"{source}: {kind} at place {place}: {key} must be an integer of at least 0 "
                f"or a text, found {number!r}."
            )
        elif number in result:
            faults.append(f"{source}: {kind} {number!r}: comes twice.")
        else:
            result[number] = entry
    return result


def _check_image(image: dict, source: str, faults: list[str]) -> bool:
    where = f"{source}: image {image['id']!r}"
    before = len(faults)
    _check_file_name(image, where, faults)
    for key in ("height", "width"):
        if not is_id(image.get(key)) or image[key] == 0:
            faults.append(f"{where}: {key} must be a number of pixels, found {image.get(key)!r}.")
    return len(faults) == before


def _check_annotation(annotation: dict, known: set[int], source: str, faults: list[str]) -> bool:
    where = f"{source}: annotation of image {annotation['image_id']!r}"
    before = len(faults)
    _check_file_name(annotation, where, faults)
    segments = annotation.get("segments_info")
    if not isinstance(segments, list):
        faults.append(f"{where}: segments_info must be a list, found {segments!r}.")
        segments = []
    for segment in segments:
        if not isinstance(segment, dict) or not is_id(segment.get("id")):
            faults.append(f"{where}: a segment needs an integer id, found {segment!r}.")
            continue
        if segment["id"] == 0:
            faults.append(f"{where}: segment id 0 is reserved for void.")
        if not is_id(segment.get("category_id")) or segment["category_id"] not in known:
            faults.append(
                f"{where}: segment {segment['id']}: category {segment.get('category_id')!r} is "
                'not among "categories".'
            )
        if segment.get("iscrowd", 0) not in (0, 1):
            faults.append(
                f"{where}: segment {segment['id']}: iscrowd must be 0 or 1, "
                f"found {segment['iscrowd']!r}."
            )
    numbers = [segment.get("id") for segment in segments if isinstance(segment, dict)]
    for number, times in Counter(filter(is_id, numbers)).items():
        if times > 1:
            faults.append(f"{where}: segment id {number} is used {times} times.")
    return len(faults) == before


def _check_file_name(entry: dict, where: str, faults: list[str]) -> None:
    name = entry.get("file_name")
    if not isinstance(name, str) or not name:
        faults.append(f"{where}: file_name must be a text, found {name!r}.")
    elif name.startswith("/") or not (parts := PurePosixPath(name).parts) or ".." in parts:
        faults.append(f"{where}: file_name must lie inside the given folder, found {name!r}.")


def _check_unique(names: list[str], kind: str, source: str, faults: list[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            faults.append(
                f"{source}: {kind} {name} belongs to {times} images, each needs its own. "
                "(Names that differ only in their ending count as equal for PNGs.)"
            )


def _join(image: dict, annotation: dict) -> AnnotatedImage:
    return AnnotatedImage(
        id=image["id"],
        file_name=image["file_name"],
        png_name=annotation["file_name"],
        height=image["height"],
        width=image["width"],
        segments=annotation["segments_info"],
    )
