"""COCO instances: one JSON for all images.

It is read as a whole, within bounds; pycocotools, COCO's own library, draws polygons and merges
masks. Its class ``COCO`` would neither check what a stranger's file says nor name what is wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from ocr_panoptic.data.classes import is_id
from ocr_panoptic.data.collection import collection_paused
from ocr_panoptic.data.faults import DataFaults, raise_if_any
from ocr_panoptic.files import printable

from .annotated_image import AnnotatedImage, Segment
from .masks import check_points, mask_of_polygons, mask_of_rle
from .reading import MAX_JSON_BYTES, check_size, each, image_file, read_object, require_images

KEYS = ("images", "annotations", "categories")


def read_coco(source: Path, images: Path | None) -> Iterator[AnnotatedImage]:
    """
    Each annotation is an object, or with ``iscrowd`` 1 a crowd. One without polygon or RLE has no
    pixel. ``score`` is read where it is given, as in files that a model has made.

    Args:
        source: the JSON.
        images: the folder that ``file_name`` is relative to.

    Raises:
        FileNotFoundError: the JSON or the folder is missing.
        ValueError: the folder was not given.
        DataFaults: it is no JSON of COCO instances; at the end, faults of images and annotations.
    """
    images = require_images(images, f"{source}: a COCO JSON")
    content = _load(source)
    names, entries = _categories(content, source), _images(content, source)
    annotations: dict[object, list[dict]] = defaultdict(list)
    faults = []
    for annotation in content["annotations"]:
        fault = _reference_fault(annotation, names, entries)
        if fault:
            faults.append(f"{source}: {fault}")
        else:
            annotations[annotation["image_id"]].append(annotation)
    raise_if_any(faults)

    def read(entry: dict) -> AnnotatedImage:
        return _read_image(entry, annotations[entry["id"]], names, images, str(source))

    yield from each(entries.values(), read)


@collection_paused()
def _load(source: Path) -> dict:
    content = read_object(source, MAX_JSON_BYTES)
    absent = [key for key in KEYS if not isinstance(content.get(key), list)]
    if absent:
        raise ValueError(
            f"{source}: is no JSON of COCO instances: it must be an object with the lists "
            f"{', '.join(KEYS)}; missing or no list: {', '.join(absent)}."
        )
    found = [entry for entry in content["annotations"] if isinstance(entry, dict)]
    if any("segments_info" in entry for entry in found[:1]):
        raise ValueError(
            f"{source}: is a panoptic JSON, which a data file names as it is: no import is needed."
        )
    if found and not any(entry.get("segmentation") for entry in found):
        raise ValueError(
            f'{source}: no annotation has a "segmentation". Boxes alone do not say which pixels '
            "an object has: export polygons or masks."
        )
    return content


def _categories(content: dict, source: Path) -> dict[int, str]:
    names, faults = {}, []
    for entry in content["categories"]:
        number = entry.get("id") if isinstance(entry, dict) else None
        name = entry.get("name") if isinstance(entry, dict) else None
        if not is_id(number) or not isinstance(name, str):
            faults.append(f"a category needs an integer id and a name, found {entry!r:.200}.")
        elif number in names:
            faults.append(f"category id {number} is used twice.")
        else:
            names[number] = name
    for name, times in Counter(names.values()).items():
        if times > 1:
            faults.append(f"category {name!r} comes {times} times.")
    raise_if_any([f"{source}: {fault}" for fault in faults])
    return names


def _images(content: dict, source: Path) -> dict[object, dict]:
    entries, faults = {}, []
    for entry in content["images"]:
        number = entry.get("id") if isinstance(entry, dict) else None
        if not is_id(number) and not isinstance(number, str):
            faults.append(f"an image needs an id, an integer or a text, found {entry!r:.200}.")
        elif number in entries:
            faults.append(f"image id {number!r} is used twice.")
        else:
            entries[number] = entry
    names = Counter(str(entry.get("file_name")) for entry in entries.values())
    for name, times in names.items():
        if times > 1:
            faults.append(f"image {printable(name)} comes {times} times.")
    raise_if_any([f"{source}: {fault}" for fault in faults])
    return entries


def _reference_fault(
    annotation: object, names: Mapping[int, str], entries: Mapping[object, dict]
) -> str | None:
    if not isinstance(annotation, dict):
        return f"an annotation must be an object, found {annotation!r:.200}."
    where = f"annotation {annotation.get('id')!r:.100}"
    image, category = annotation.get("image_id"), annotation.get("category_id")
    if not isinstance(image, int | str) or image not in entries:
        return f'{where}: image {image!r:.100} is not in "images".'
    if not is_id(category) or category not in names:
        return f'{where}: category {category!r:.100} is not in "categories".'
    return None


def _read_image(
    entry: dict, annotations: list[dict], names: Mapping[int, str], images: Path, source: str
) -> AnnotatedImage:
    where = f"{source}: image {entry['id']!r:.100}"
    image = image_file(images, entry.get("file_name"), where)
    check_size(image, entry.get("height"), entry.get("width"), where)
    segments, faults = [], []
    for annotation in annotations:
        try:
            segments.append(
                _segment(annotation, names[annotation["category_id"]], image.height, image.width)
            )
        except ValueError as error:
            number = annotation.get("id")
            faults.append(f"{source}: annotation {number!r:.100} of {image.name}: {error}.")
    if faults:
        raise DataFaults(faults)
    return AnnotatedImage(image.file, image.name, image.height, image.width, segments)


def _segment(annotation: dict, label: str, height: int, width: int) -> Segment:
    iscrowd, score = annotation.get("iscrowd", 0), annotation.get("score")
    if iscrowd not in (0, 1):
        raise ValueError(f"iscrowd must be 0 or 1, found {iscrowd!r:.100}")
    if score is not None and (type(score) not in (int, float) or not 0 <= score <= 1):
        raise ValueError(f"score must be a number 0..1, found {score!r:.100}")
    shape = annotation.get("segmentation") or []
    if isinstance(shape, dict):
        mask = mask_of_rle(shape, height, width)
    elif isinstance(shape, list):
        mask = mask_of_polygons([_corners(part, height, width) for part in shape], height, width)
    else:
        raise ValueError(f"segmentation must be polygons or an RLE, found {shape!r:.100}")
    return Segment(label, mask, instance=True, is_crowd=bool(iscrowd), score=score)


def _corners(part: object, height: int, width: int):
    if not isinstance(part, list) or len(part) % 2:
        raise ValueError("a polygon must be a list [x, y, x, y, ...]")
    return check_points(list(zip(part[::2], part[1::2], strict=True)), height, width)
