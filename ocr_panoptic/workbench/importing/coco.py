"""COCO instances: one JSON for all images.

It is read as a whole, within bounds; pycocotools, COCO's own library, draws polygons and merges
masks. Its class ``COCO`` would neither check what a stranger's file says nor name what is wrong.
"""

import logging
import marshal
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ocr_panoptic.data.classes import is_id
from ocr_panoptic.data.faults import raise_if_any, repeated
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import MAX_JSON_BYTES, collection_paused, printable

from .annotated_image import AnnotatedImage, Segment
from .masks import EDGES, check_points, mask_of_polygons, mask_of_rle
from .reading import (
    check_size,
    each,
    image_file,
    names_of_upload,
    read_object,
    require_images,
    shapes_of,
)

logger = logging.getLogger(__name__)

_LISTS = ("images", "annotations", "categories")
ROBOFLOW = "_annotations.coco.json"  # beside the images
DARWIN = "Exported from Darwin"
# What "info" says of tools whose polygons go through the centres of pixels.
TOOLS = {"roboflow": "Roboflow", "Darwin": "V7", "Label Studio": "Label Studio"}


def splits_of_coco(source: Path) -> dict[str, tuple[Path, None]]:
    """The folders ``train``, ``valid`` and ``test`` of an export of Roboflow, by split."""
    folders = {"train": "train", "val": "valid", "test": "test"}
    return {
        split: (source / name, None)
        for split, name in folders.items()
        if (source / name / ROBOFLOW).is_file()
    }


def read_coco(
    source: Path, images: Path | None, polygons: str | None = None
) -> Iterator[AnnotatedImage]:
    """
    Each annotation is an object, or with ``iscrowd`` 1 a crowd. One without polygon or RLE has no
    pixel. ``score`` is read where it is given, as in files that a model has made.

    Args:
        source: the JSON, or a folder of Roboflow with it and its images.
        images: the folder that ``file_name`` is relative to.
        polygons: key of :data:`.masks.POLYGONS`; by default "edges".

    Raises:
        FileNotFoundError: the JSON or the folder is missing.
        ValueError: the folder was not given.
        DataFaults: it is no JSON of COCO instances; at the end, faults of images and annotations.
    """
    if source.is_dir():
        images, source = images or source, source / ROBOFLOW
    images = require_images(images, f"{source}: a COCO JSON")
    content = _load(source)
    if polygons is None:
        _hint_at_polygons(source, content)
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
    is_doubtful = _are_crowds_doubtful(content)
    content.clear()

    def read(entry: dict) -> AnnotatedImage:
        where = f"{source}: image {entry['id']!r:.100}"
        image = image_file(images, names_of_upload(entry.get("file_name")), where)
        check_size(image, entry.get("height"), entry.get("width"), where)
        shapes = (
            (f"{source}: annotation {annotation.get('id')!r:.100} of {image.name}", annotation)
            for annotation in annotations.pop(entry["id"], ())
        )

        def segment(annotation: dict) -> Segment:
            found = _segment(annotation, names, image, polygons or EDGES)
            return replace(found, is_doubtful=found.is_crowd and is_doubtful)

        return replace(image, segments=shapes_of(shapes, segment))

    yield from each(entries.values(), read)


@collection_paused()
def _load(source: Path) -> dict:
    content = read_object(source, MAX_JSON_BYTES, _packed)
    absent = [key for key in _LISTS if not isinstance(content.get(key), list)]
    if absent:
        raise UserError(
            f"{source}: is no JSON of COCO instances: it must be an object with the lists "
            f"{', '.join(_LISTS)}; missing or no list: {', '.join(absent)}."
        )
    found = [entry for entry in content["annotations"] if isinstance(entry, dict)]
    if any("segments_info" in entry for entry in found[:1]):
        raise UserError(
            f"{source}: is a panoptic JSON, which a data file names as it is: no import is needed."
        )
    if found and not any(entry.get("segmentation") for entry in found):
        raise UserError(
            f'{source}: no annotation has a "segmentation". Boxes alone do not say which pixels '
            "an object has: export polygons or masks."
        )
    return content


def _packed(entry: dict) -> dict:
    """An object of the JSON whose polygons or run lengths, if it has some, are bytes: of a number
    5 or 9 of them, where a list takes 36."""
    if entry.get("segmentation"):
        entry["segmentation"] = marshal.dumps(entry["segmentation"])
    return entry


def _unpacked(annotation: dict) -> object:
    shape = annotation.get("segmentation")
    return marshal.loads(shape) if shape else []


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
    faults += [f"category {n!r} comes {times} times." for n, times in repeated(names.values())]
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
    for name, times in repeated(str(entry.get("file_name")) for entry in entries.values()):
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


def _hint_at_polygons(source: Path, content: dict) -> None:
    tools = [name for word, name in TOOLS.items() if word in str(content.get("info"))]
    if tools:
        logger.warning(
            f"{source}: is an export of {tools[0]}, whose polygons may go through the centres of "
            "pixels; drawn along their edges, small things lose a part. Give --polygons centres, "
            "or edges, which is what is done now."
        )


def _are_crowds_doubtful(content: dict) -> bool:
    """Return whether crowds may be objects with holes or in several parts, which are no single
    polygon: V7 and supervision write just these as RLE with ``iscrowd`` 1."""
    if DARWIN in str(content.get("info")):
        return True
    shapes = ((a.get("iscrowd", 0), _unpacked(a)) for a in content["annotations"])
    return all(
        isinstance(shape, dict) if crowd else isinstance(shape, list) and len(shape) < 2
        for crowd, shape in shapes
    )


def _segment(
    annotation: dict, names: Mapping[int, str], image: AnnotatedImage, polygons: str
) -> Segment:
    iscrowd, score = annotation.get("iscrowd", 0), annotation.get("score")
    if iscrowd not in (0, 1):
        raise UserError(f"iscrowd must be 0 or 1, found {iscrowd!r:.100}")
    if score is not None and (type(score) not in (int, float) or not 0 <= score <= 1):
        raise UserError(f"score must be a number 0..1, found {score!r:.100}")
    shape = _unpacked(annotation)
    if isinstance(shape, dict):
        mask = mask_of_rle(shape, image.height, image.width)
    elif isinstance(shape, list):
        corners = [_corners(part, image.height, image.width) for part in shape]
        mask = mask_of_polygons(corners, image.height, image.width, polygons)
    else:
        raise UserError(f"segmentation must be polygons or an RLE, found {shape!r:.100}")
    label = names[annotation["category_id"]]
    return Segment(label, mask, instance=True, is_crowd=bool(iscrowd), score=score)


def _corners(part: object, height: int, width: int):
    if not isinstance(part, list) or len(part) % 2:
        raise UserError("a polygon must be a list [x, y, x, y, ...]")
    return check_points(list(zip(part[::2], part[1::2], strict=True)), height, width)
