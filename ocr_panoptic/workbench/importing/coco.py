"""Reads COCO instance annotations: a single JSON file for all images."""

import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from ocr_panoptic.data.faults import raise_if_any, repeated
from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.other_tools import read_export, unreadable

from .annotated_image import AnnotatedImage, Segment
from .masks import corners_of, is_box, is_traced, mask_of_polygons, mask_of_rle
from .reading import Annotations, check_size, image_file, names_of_upload, read_each, require_images

logger = logging.getLogger(__name__)

_LISTS = ("images", "annotations", "categories")
ROBOFLOW = "_annotations.coco.json"  # lies beside the images
DARWIN = "Exported from Darwin"
# Word in "info" -> tool, for tools whose polygons go through the centres of pixels.
TOOLS = {"roboflow": "Roboflow", "Darwin": "V7", "Label Studio": "Label Studio"}


def splits_of_coco(source: Path) -> dict[str, tuple[Path, str | None]]:
    """
    Return {split: (folder, None)} for each split (train, val, test) in a Roboflow export.

    None means that all annotations in the folder are read.
    """
    folders = {"train": source / "train", "val": source / "valid", "test": source / "test"}
    return {s: (folder, None) for s, folder in folders.items() if (folder / ROBOFLOW).is_file()}


def read_coco(source: Path, images: Path | None, polygons: str | None = None) -> Annotations:
    """
    Return the annotated images of a COCO JSON.

    An annotation is an object, or a crowd if ``iscrowd`` is 1. An annotation without a polygon or
    RLE becomes an empty segment.

    Args:
        polygons: "edges" if polygons follow the edges of pixels, "centres" if they pass through the
            centres of border pixels. None means "edges", and logs a warning if the tool that wrote
            the file is known to use centres.
    """
    if source.is_dir():
        listed = sorted(source.glob("*.json"))
        file = listed[0] if len(listed) == 1 else source / ROBOFLOW
        images, source = images or source, file
        if not source.is_file():
            raise MissingFileError(f"{source}: not found. Give the JSON and the folder of images.")
    ((content, names, by_image),) = read_each([(str(source), source)], _load)
    folder = require_images(images, source)
    tools = [name for word, name in TOOLS.items() if word in str(content.get("info"))]
    if tools and polygons is None:
        logger.warning(
            f"{source}: exported by {tools[0]}, whose polygons usually pass through the centres of "
            "border pixels. Taken as pixel edges, as here, they lose up to a pixel in width and "
            "height. Give --polygons centres, or --polygons edges if they follow edges."
        )

    def find(entry: tuple[dict, list]) -> AnnotatedImage:  # an image in the JSON, its annotations
        image = image_file(folder, names_of_upload(entry[0]["file_name"]))
        check_size(image, entry[0].get("height"), entry[0].get("width"))
        return image

    is_doubtful = _are_crowds_doubtful(content)
    return Annotations(
        [
            (f"{source}: image {e.get('file_name')!r:.200}", (e, by_image[_id(e["id"])]))
            for e in content["images"]
        ],
        find,
        partial(_read, names=names, polygons=polygons, is_doubtful=is_doubtful),
        lambda entry: [
            Segment(name, {}, instance=True)
            for annotation in entry[1]
            if (name := names.get(_id(annotation["category_id"])))
        ],
    )


def _load(source: Path) -> tuple[dict, dict[str, str], dict[str, list[dict]]]:
    """Return a COCO JSON's content, its classes keyed by id, and annotations keyed by image id."""
    content = read_export(source)
    if not isinstance(content, dict) or not all(isinstance(content.get(k), list) for k in _LISTS):
        lists = ", ".join(_LISTS)
        fault = f"not a COCO instance JSON, which is an object with the lists {lists}."
        raise unreadable(source, content, fault)
    annotations = content["annotations"]
    if annotations and "segments_info" in annotations[0]:
        raise UserError(
            "a panoptic JSON needs no import. Name it in a data file (datasets/README.md)."
        )
    if annotations and not any(annotation.get("segmentation") for annotation in annotations):
        raise UserError(
            'no annotation has a "segmentation". Boxes do not show which pixels belong to an '
            "object. Export polygons or masks."
        )
    ids = {key: [_id(entry["id"]) for entry in content[key]] for key in ("images", "categories")}
    raise_if_any([f"two {k} have the id {n:.100}." for k in ids for n, _ in repeated(ids[k])])
    by_image: dict[str, list[dict]] = defaultdict(list)
    for annotation in annotations:
        by_image[_id(annotation["image_id"])].append(annotation)
    strangers = sum(len(by_image[number]) for number in by_image.keys() - {*ids["images"]})
    if strangers:
        logger.warning(
            f"{source}: left out {strangers} of {len(annotations)} annotations, because their "
            'image_id is not in "images".'
        )
    names = {_id(category["id"]): category["name"] for category in content["categories"]}
    # Roboflow adds a category without annotations that has the name of another category.
    used = {_id(annotation["category_id"]) for annotation in annotations}
    for name, times in repeated(name for number, name in names.items() if number in used):
        logger.warning(f"{source}: {times} categories are named {name!r}; they become one class.")
    return content, names, by_image


def _id(number: object) -> str:
    """Return an id as text, so that 1, "1" and 1.0 are equal."""
    return str(number).removesuffix(".0")


def _are_crowds_doubtful(content: dict) -> bool:
    """Return whether ``iscrowd`` may mark a single object that has holes or several parts."""
    if DARWIN in str(content.get("info")):
        return True
    shapes = ((a.get("iscrowd", 0), a.get("segmentation", [])) for a in content["annotations"])
    return all(
        isinstance(shape, dict) if crowd else isinstance(shape, list) and len(shape) < 2
        for crowd, shape in shapes
    )


def _read(
    image: AnnotatedImage,
    entry: tuple,
    names: Mapping[str, str],
    polygons: str | None,
    is_doubtful: bool,
) -> AnnotatedImage:
    def segment(annotation: dict) -> Segment:
        shape, boxed, traced = annotation.get("segmentation") or [], False, False
        if isinstance(shape, dict):
            mask = mask_of_rle(shape, image.height, image.width)
        else:
            parts = shape if not shape or isinstance(shape[0], list) else [shape]
            corners = [corners_of(part) for part in parts]
            mask = mask_of_polygons(corners, image.height, image.width, polygons)
            boxed = len(corners) == 1 and is_box(corners[0])
            traced = any(map(is_traced, corners))
        if (category := _id(annotation["category_id"])) not in names:
            raise UserError(f'category_id {category:.100} is not in "categories"')
        label, is_crowd = names[category], bool(annotation.get("iscrowd", 0))
        marks = {"is_crowd": is_crowd, "is_doubtful": is_crowd and is_doubtful}
        return Segment(label, mask, True, **marks, is_box=boxed, is_traced=traced)

    places = ((f"annotation {a.get('id')!r:.100}", a) for a in entry[1])
    return replace(image, segments=list(read_each(places, segment)))
