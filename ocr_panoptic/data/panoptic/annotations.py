"""
Read a panoptic JSON, report all of its faults, and map its categories to a model's classes.

The format is COCO's (https://cocodataset.org/#format-data): the lists ``images``, ``categories``
and ``annotations``; an annotation names the PNG of an image and lists its ``segments_info``. For
Panoptic-FPN, the T thing classes have the ids 0..T-1. The semantic head has S + 1 classes: label 0
is "things", labels 1..S are the stuff classes, and 255 is void (ignored). Thing classes and stuff
classes are ordered by category id, as Detectron2 orders COCO's categories.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ocr_panoptic.data.classes import (
    VOID_LABEL,
    derived_color,
    faults_of_class,
    has_controls,
    is_id,
)
from ocr_panoptic.data.faults import DataFaults, gathering, raise_if_any, repeated
from ocr_panoptic.errors import MissingFileError
from ocr_panoptic.formats.coco_panoptic import MAX_ID, THINGS_LABEL
from ocr_panoptic.formats.files import collection_paused, read_json
from ocr_panoptic.formats.pictures import Color

THINGS_COLOR = [82, 18, 128]  # Detectron2's colour for the semantic class "things"


@dataclass(frozen=True)
class Category:
    id: int
    name: str
    isthing: bool
    color: Color

    def as_json(self) -> dict:
        return {**vars(self), "isthing": int(self.isthing), "color": list(self.color)}


def parse_categories(entries: object, source: str) -> list[Category]:
    """
    Return the ``categories`` of a panoptic JSON, in ascending order of ids.

    A category without "color" gets a colour that depends only on its position in this order.
    All faults are raised together as DataFaults; each message begins with ``source``.
    """
    if not isinstance(entries, list) or not entries:
        raise DataFaults([f'{source}: "categories" must be a list with at least one category.'])
    faults, usable = [], []
    for entry in entries:
        wrong = list(_faults(entry))
        faults += wrong
        usable += [] if wrong else [entry]
    for key in ("id", "name"):
        for value, times in repeated(entry[key] for entry in usable):
            faults.append(f"category {key} {value!r} is used {times} times.")
    num_stuff = sum(not entry["isthing"] for entry in usable)
    if num_stuff >= VOID_LABEL:
        faults.append(f"found {num_stuff} stuff categories, expected at most {VOID_LABEL - 1}.")
    if not faults and num_stuff == len(usable):
        faults.append(
            "no category has isthing 1, but Panoptic-FPN needs a thing category, even if no image "
            'contains it. Datumaro writes 0 for all categories: in "categories", set isthing to 1 '
            "for classes of objects. If no class has objects, use label PNGs and a "
            "config for semantic segmentation."
        )
    raise_if_any([f"{source}: {fault}" for fault in faults])
    return [
        Category(
            entry["id"],
            entry["name"],
            bool(entry["isthing"]),
            tuple(entry.get("color", derived_color(place))),
        )
        for place, entry in enumerate(sorted(usable, key=lambda entry: entry["id"]))
    ]


def _faults(entry: object) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield f"a category must be a JSON object with id, name and isthing, found {entry!r}."
        return
    number, isthing = entry.get("id"), entry.get("isthing")
    where = f"category {number!r}"
    if not is_id(number):
        yield f"{where}: the id must be an integer from 0 to 2^63 - 1."
    for fault in faults_of_class(entry.get("name"), entry.get("color", [0, 0, 0])):
        yield f"{where}: {fault}"
    if isthing not in (0, 1):
        yield (
            f"{where}: isthing must be 1 (things) or 0 (stuff), found {isthing!r}. "
            "Is this a panoptic JSON?"
        )


def panoptic_metadata(categories: list[Category]) -> dict:
    """
    Return metadata with the keys of Detectron2's ``coco_2017_val_panoptic_separated``.

    The semantic class "things" is added. Its dataset id is 0, as in Detectron2, or -1 if a category
    has the id 0. A category that is itself called "things" is renamed "things (thing)" or
    "things (stuff)", because metrics need distinct class names.
    """
    things = [category for category in categories if category.isthing]
    stuff = [category for category in categories if not category.isthing]
    thing_names, stuff_names = (
        [f"{c.name} ({kind})" if c.name == "things" else c.name for c in group]
        for group, kind in ((things, "thing"), (stuff, "stuff"))
    )
    things_id = -1 if any(category.id == 0 for category in categories) else 0
    stuff_ids = {category.id: label for label, category in enumerate(stuff, THINGS_LABEL + 1)}
    return {
        "thing_classes": thing_names,
        "thing_colors": [list(category.color) for category in things],
        "thing_dataset_id_to_contiguous_id": {c.id: index for index, c in enumerate(things)},
        "stuff_classes": ["things", *stuff_names],
        "stuff_colors": [THINGS_COLOR, *(list(category.color) for category in stuff)],
        "stuff_dataset_id_to_contiguous_id": {**stuff_ids, things_id: THINGS_LABEL},
    }


@dataclass(frozen=True)
class PanopticImage:
    id: int | str
    file_name: str  # relative to the folder of images
    png_name: str  # relative to the folder of panoptic PNGs
    height: int
    width: int
    segments: list[dict]  # segments_info: id, category_id; optionally iscrowd, area, bbox


@dataclass(frozen=True)
class PanopticJson:
    path: Path
    categories: list[Category]
    images: list[PanopticImage]


@collection_paused()
def read_panoptic_json(path: Path) -> PanopticJson:
    """Read a panoptic JSON, and check everything that can be checked without the image files."""
    content = _load(path)
    faults_of_categories: list[str] = []
    categories: list[Category] = []
    with gathering(faults_of_categories):
        categories = parse_categories(content["categories"], str(path))
    faults = [] if content["images"] else ['the data set is empty: "images" has no entries.']
    images = _by_id(content["images"], "id", "images", faults)
    annotations = _by_id(content["annotations"], "image_id", "annotations", faults)
    if len({type(number) for number in images}) > 1:
        faults.append("image ids must be all integers or all strings, found both.")
    for number in annotations.keys() - images.keys():
        faults.append(f'annotation of image {number!r}: "images" has no image with this id.')
    for number in images.keys() - annotations.keys():
        faults.append(f'"annotations" has no entry with image_id {number!r}.')
    listed = [entry for entry in content["categories"] if isinstance(entry, dict)]
    # Whether each category is stuff; faulty ones, too.
    known = {e["id"]: e.get("isthing") == 0 for e in listed if is_id(e.get("id"))}
    joined = []
    for number in (number for number in images if number in annotations):
        image, annotation = images[number], annotations[number]
        wrong = [f"image {number!r}: {fault}" for fault in _image_faults(image)]
        for fault in _annotation_faults(annotation, known):
            wrong.append(f"annotation of image {number!r}: {fault}")
        faults += wrong
        if not wrong:
            joined.append(
                PanopticImage(
                    id=number,
                    file_name=_with_slashes(image["file_name"]),
                    png_name=_with_slashes(annotation["file_name"]),
                    height=image["height"],
                    width=image["width"],
                    segments=_joined(annotation["segments_info"]),
                )
            )
    for kind, key in (("image file", "file_name"), ("PNG file", "png_name")):
        for name, times in repeated(getattr(image, key) for image in joined):
            faults.append(f"{kind} {name} belongs to {times} images; each needs its own file.")
    raise_if_any(faults_of_categories + [f"{path}: {fault}" for fault in faults])
    return PanopticJson(path, categories, joined)


def _load(path: Path) -> dict:
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: panoptic JSON not found.") from None
    except ValueError as error:
        raise DataFaults([str(error)]) from error
    keys = ("images", "annotations", "categories")
    lists = content if isinstance(content, dict) else {}
    if absent := [key for key in keys if not isinstance(lists.get(key), list)]:
        fault = f"It needs the lists {', '.join(keys)}; missing or not a list: {', '.join(absent)}."
        raise DataFaults([f"{path}: not a panoptic JSON. {fault}"])
    first = content["annotations"][0] if content["annotations"] else None
    if isinstance(first, dict) and "segments_info" not in first and "bbox" in first:
        fault = "Its annotations are COCO instances. Use ocr-panoptic import --from coco."
        raise DataFaults([f"{path}: not a panoptic JSON. {fault}"])
    return content


def _by_id(entries: list, key: str, kind: str, faults: list[str]) -> dict[int | str, dict]:
    result: dict[int | str, dict] = {}
    for place, entry in enumerate(entries):
        number = entry.get(key) if isinstance(entry, dict) else None
        if not is_id(number) and not (isinstance(number, str) and number):
            faults.append(
                f'"{kind}" entry {place}: {key} must be an integer from 0 to 2^63 - 1 or a '
                f"non-empty string, found {number!r}."
            )
        elif number in result:
            faults.append(f'"{kind}": {key} {number!r} is used more than once.')
        else:
            result[number] = entry
    return result


def _with_slashes(name: Any) -> Any:
    """Return a path with slashes in place of the backslashes of Windows."""
    return name.replace("\\", "/") if isinstance(name, str) else name


def _joined(segments: list[dict]) -> list[dict]:
    """Join entries with the same id, as Segments.ai writes the regions of a class of stuff."""
    joined: dict[int, dict] = {}
    for segment in segments:
        number, category = segment["id"], segment["category_id"]
        again = {"id": number, "category_id": category, "iscrowd": segment.get("iscrowd", 0)}
        joined[number] = again if number in joined else segment  # area and bbox are of one region
    return [*joined.values()]


def _image_faults(image: dict) -> Iterator[str]:
    yield from file_name_faults(_with_slashes(image.get("file_name")))
    for key in ("height", "width"):
        if not is_id(image.get(key)) or image[key] == 0:
            yield f"{key} must be a positive integer (pixels), found {image.get(key)!r}."


def _annotation_faults(annotation: dict, known: dict[int, bool]) -> Iterator[str]:
    """Yield the faults of an annotation; ``known`` says for each category whether it is stuff."""
    yield from file_name_faults(_with_slashes(annotation.get("file_name")))
    segments = annotation.get("segments_info")
    if not isinstance(segments, list):
        yield f"segments_info must be a list, found {segments!r}."
        return
    owners: dict[int, list[int | None]] = {}  # id -> its categories, None for things
    for segment in segments:
        number = segment.get("id") if isinstance(segment, dict) else None
        if not is_id(number):
            yield f"a segment needs an integer id in 1..{MAX_ID}, found {segment!r}."
            continue
        category, iscrowd = segment.get("category_id"), segment.get("iscrowd", 0)
        is_stuff = is_id(category) and known.get(category, False)
        owners.setdefault(number, []).append(category if is_stuff else None)
        if number == 0:
            yield f"a segment has the id 0, which means void; expected 1..{MAX_ID}."
        if not is_id(category):
            yield f"segment {number}: category_id must be an integer from 0, found {category!r}."
        elif category not in known:
            yield f'segment {number}: category {category!r} is not in "categories".'
        if iscrowd not in (0, 1):
            yield f"segment {number}: iscrowd must be 0 or 1, found {iscrowd!r}."
    for number, categories in owners.items():
        if len(categories) > 1 and (None in categories or len({*categories}) > 1):
            yield f"segment id {number} is used {len(categories)} times, expected once."


def file_name_faults(name: object) -> Iterator[str]:
    """Yield a fault unless a name is a relative path without ".." or control characters."""
    if not isinstance(name, str) or not name:
        yield f"file_name must be a non-empty string, found {name!r}."
    elif has_controls(name):
        yield f"file_name must not contain control characters, found {name!r}."
    elif name.startswith("/") or not (parts := PurePosixPath(name).parts) or ".." in parts:
        yield f"file_name must be a relative path inside the given folder, found {name!r}."
