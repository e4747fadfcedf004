"""COCO instances: a single JSON for all images."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ocr_panoptic.data.faults import raise_if_any, repeated
from ocr_panoptic.errors import MissingFileError, UserError

from .annotated_image import AnnotatedImage, Segment
from .masks import EDGES, check_points, is_box, mask_of_polygons, mask_of_rle
from .reading import (
    Annotations,
    check_size,
    image_file,
    names_of_upload,
    read_each,
    read_object,
    require_images,
)

logger = logging.getLogger(__name__)

_LISTS = ("images", "annotations", "categories")
ROBOFLOW = "_annotations.coco.json"  # lies beside the images
DARWIN = "Exported from Darwin"
# Word in "info" -> tool, for tools whose polygons go through the centres of pixels.
TOOLS = {"roboflow": "Roboflow", "Darwin": "V7", "Label Studio": "Label Studio"}


def splits_of_coco(source: Path) -> dict[str, tuple[Path, str | None]]:
    """Return split -> folder, for the ``train``, ``valid`` and ``test`` of a Roboflow export."""
    folders = {"train": "train", "val": "valid", "test": "test"}
    return {
        split: (source / name, None)
        for split, name in folders.items()
        if (source / name / ROBOFLOW).is_file()
    }


def read_coco(source: Path, images: Path | None, polygons: str | None = None) -> Annotations:
    """
    Find the images in a COCO JSON.

    An annotation is an object, or a crowd if ``iscrowd`` is 1. If it has neither polygon nor RLE,
    it has no pixels.

    Args:
        source: JSON, or a Roboflow folder that holds a JSON and its images.
        images: folder that ``file_name`` is relative to.
        polygons: value of :data:`.masks.POLYGONS`; the default is edges.
    """
    if source.is_dir():
        listed = sorted(source.glob("*.json"))
        own_name = listed[0] if len(listed) == 1 else source / ROBOFLOW
        images, source = images or source, own_name
        if not source.is_file():
            raise MissingFileError(
                f"{source}: not found, nor a single other JSON beside it. Name the JSON and then "
                "the folder of images, or the folder of a Roboflow export without --split."
            )
    images = require_images(images, f"{source}: a COCO JSON")
    ((content, own),) = read_each([(str(source), source)], _load)
    if polygons is None:
        _hint_at_polygons(source, content)
    names = {category["id"]: category.get("name") for category in content["categories"]}
    segment = partial(_segment, names=names, polygons=polygons or EDGES)
    return Annotations(
        [
            (f"{source}: image {e.get('file_name')!r:.200}", (e, own.get(e["id"], ())))
            for e in content["images"]
        ],
        partial(_find, images),
        partial(_read, segment=segment, is_doubtful=_are_crowds_doubtful(content)),
        lambda entry: [names[a["category_id"]] for a in entry[1] if a.get("segmentation")],
        instance=True,
    )


Entry = tuple[dict, Sequence[dict]]  # an image and its annotations


def _find(folder: Path, entry: Entry) -> AnnotatedImage:
    image = image_file(folder, names_of_upload(entry[0]["file_name"]))
    check_size(image, entry[0].get("height"), entry[0].get("width"))
    return image


def _read(
    image: AnnotatedImage, entry: Entry, segment: Callable[..., Segment], is_doubtful: bool
) -> AnnotatedImage:
    places = ((f"annotation {a.get('id')!r:.100}", a) for a in entry[1])
    found = read_each(places, partial(segment, image=image))
    return replace(
        image, segments=[replace(s, is_doubtful=s.is_crowd and is_doubtful) for s in found]
    )


def _load(source: Path) -> tuple[dict, dict[object, list[dict]]]:
    """Return the JSON's content, and image id -> annotations."""
    content = read_object(source)
    absent = [key for key in _LISTS if not isinstance(content.get(key), list)]
    if absent:
        raise UserError(
            f"is not a JSON of COCO instances: it must be an object with the lists "
            f"{', '.join(_LISTS)}; missing or not a list: {', '.join(absent)}."
        )
    annotations = content["annotations"]
    if annotations and "segments_info" in annotations[0]:
        raise UserError("is a panoptic JSON: name it in a data file, without an import.")
    if annotations and not any(annotation.get("segmentation") for annotation in annotations):
        raise UserError(
            'no annotation has a "segmentation". Boxes do not say which pixels an object has: '
            "export polygons or masks."
        )
    ids = {key: [entry["id"] for entry in content[key]] for key in ("images", "categories")}
    faults = [f"two {k} have the id {n!r:.100}." for k in ids for n, _ in repeated(ids[k])]
    # VIA writes "1" for the id 1.
    known = {key: {str(number): number for number in numbers} for key, numbers in ids.items()}
    for annotation in annotations:
        for key, name in (("images", "image_id"), ("categories", "category_id")):
            annotation[name] = known[key].get(str(annotation[name]), annotation[name])
    strangers = 0
    own: dict[object, list[dict]] = defaultdict(list)
    images, categories = set(ids["images"]), set(ids["categories"])
    for annotation in annotations:
        where, image = f"annotation {annotation.get('id')!r:.100}", annotation["image_id"]
        strangers += image not in images
        if (category := annotation["category_id"]) not in categories:
            faults.append(f'{where}: category {category!r:.100} is not in "categories".')
        own[image].append(annotation)
    if 0 < strangers == len(annotations):
        first = annotations[0]["image_id"]
        faults.append(f'no annotation has an image_id from "images"; the first has {first!r:.100}.')
    used = {annotation["category_id"] for annotation in annotations}
    # Roboflow adds a category without annotations whose name repeats another.
    names = [category["name"] for category in content["categories"] if category["id"] in used]
    raise_if_any(faults)
    for name, times in repeated(names):
        logger.warning(f"{source}: {times} categories are named {name!r}; they become one class.")
    if strangers:
        logger.warning(
            f"{source}: {strangers} of {len(annotations)} annotations are left out: their image_id "
            'is not in "images".'
        )
    return content, own


def _hint_at_polygons(source: Path, content: dict) -> None:
    tools = [name for word, name in TOOLS.items() if word in str(content.get("info"))]
    if tools:
        logger.warning(
            f"{source}: is an export of {tools[0]}, whose polygons may go through the centres of "
            "pixels. They are now drawn along edges, which makes small things smaller. Give "
            "--polygons centres, or --polygons edges if this is right."
        )


def _are_crowds_doubtful(content: dict) -> bool:
    """
    Return whether crowds may be objects with holes or several parts.

    V7 and the supervision package write such objects as RLE with ``iscrowd`` 1.
    """
    if DARWIN in str(content.get("info")):
        return True
    shapes = ((a.get("iscrowd", 0), a.get("segmentation", [])) for a in content["annotations"])
    return all(
        isinstance(shape, dict) if crowd else isinstance(shape, list) and len(shape) < 2
        for crowd, shape in shapes
    )


def _segment(
    annotation: dict, names: dict[int, str], image: AnnotatedImage, polygons: str
) -> Segment:
    shape, size = annotation.get("segmentation") or [], (image.height, image.width)
    corners = []
    if isinstance(shape, dict):
        mask = mask_of_rle(shape, *size)
    else:
        parts = shape if not shape or isinstance(shape[0], list) else [shape]
        if any(len(part) % 2 for part in parts):
            raise UserError("a polygon must be a list x, y, x, y, ..., found an odd number")
        corners = [check_points(np.reshape(part, (-1, 2)), *size) for part in parts]
        mask = mask_of_polygons(corners, *size, polygons)
    label, is_crowd = names[annotation["category_id"]], bool(annotation.get("iscrowd", 0))
    boxed = len(corners) == 1 and is_box(corners[0])
    return Segment(label, mask, instance=True, is_crowd=is_crowd, is_box=boxed)
