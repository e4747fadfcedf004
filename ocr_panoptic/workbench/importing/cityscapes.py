"""Cityscapes: for each image ``*_instanceIds.png`` and ``*_polygons.json``.

The files are named ``<city>/<city>_<sequence>_<frame>_gtFine_instanceIds.png``, the images
``<city>/<city>_<sequence>_<frame>_leftImg8bit.png``, or without these parts. Polygons are drawn as
cityscapesscripts does, by Pillow in the order of the file, so that they give its PNGs.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from ocr_panoptic.data.published.tables import (
    CITYSCAPES_CLASSES,
    CITYSCAPES_IGNORED,
    CITYSCAPES_OBJECTS,
)
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.labels import read_label_image

from .annotated_image import AnnotatedImage, Segment
from .kinds import Kinds
from .masks import check_points, masks_of_map
from .reading import (
    Annotations,
    check_size,
    each,
    files_below,
    image_with_stem,
    read_object,
    require_images,
)

FIRST_THING = 24  # label ids from here on have instances
GROUP = "group"  # objects that are not told apart: "cargroup"
NOT_DRAWN = "license plate"  # cityscapesscripts leaves what is below

NAMES = CITYSCAPES_IGNORED | {number: name for number, name, _, _ in CITYSCAPES_CLASSES}
CITYSCAPES_KINDS = Kinds(
    things=tuple(name for number, name, _, _ in CITYSCAPES_CLASSES if number >= FIRST_THING),
    stuff=tuple(name for number, name, _, _ in CITYSCAPES_CLASSES if number < FIRST_THING),
    ignore=tuple(CITYSCAPES_IGNORED.values()),
    colors={name: color for _, name, _, color in CITYSCAPES_CLASSES},
)

_TAIL = re.compile(r"(_gt[A-Za-z]+)?_(instanceIds\.png|polygons\.json)$")


def read_cityscapes(source: Path, images: Path | None) -> Annotations:
    """Return the images of PNGs of instance ids: an id of 1000 or more is an object of label id
    // 1000, another is the label id of a region.

    Args:
        source: folder such as ``gtFine/train``.
        images: folder such as ``leftImg8bit/train``.
    """
    images = require_images(images, f"{source}: Cityscapes' annotations")
    files = [(str(path), path) for path in files_below(source, ("_instanceIds.png",))]
    return Annotations(files, partial(_image_of, source=source, images=images), _read_png)


def read_cityscapes_polygons(source: Path, images: Path | None) -> Annotations:
    """Return the images of JSON files, whose classes may be others than those of Cityscapes.

    A label that ends in "group" is a region of its class. What is covered is not read, as in
    Cityscapes' own PNGs.

    Args:
        source: folder such as ``gtFine/train``.
        images: folder such as ``leftImg8bit/train``.
    """
    images = require_images(images, f"{source}: Cityscapes' annotations")
    files = [(str(path), path) for path in files_below(source, ("_polygons.json",))]
    return Annotations(files, partial(_image_of, source=source, images=images), _read_polygons)


def _image_of(path: Path, source: Path, images: Path) -> AnnotatedImage:
    stem = (path.parent / _TAIL.sub("", path.name)).relative_to(source).as_posix()
    return image_with_stem(images, [f"{stem}_leftImg8bit", stem])


def _read_png(image: AnnotatedImage, path: Path) -> AnnotatedImage:
    ids = read_label_image(path).astype(np.int64)
    check_size(image, *ids.shape)
    segments, unknown = [], []
    for value, mask in masks_of_map(ids):
        number = value // CITYSCAPES_OBJECTS if value >= CITYSCAPES_OBJECTS else value
        if number in NAMES:
            segments.append(Segment(NAMES[number], mask, instance=value >= CITYSCAPES_OBJECTS))
        else:
            unknown.append(value)
    if unknown:
        raise UserError(
            f"the ids {unknown[:5]} are not label ids of Cityscapes. Are they train ids, or those "
            "of other classes?"
        )
    return replace(image, segments=segments)


def _read_polygons(image: AnnotatedImage, path: Path) -> AnnotatedImage:
    content = read_object(path)
    check_size(image, content.get("imgHeight"), content.get("imgWidth"))
    objects = content["objects"]
    canvas = Image.new("I", (image.width, image.height), 0)
    places = ((f"object {n - 1}", (n, entry)) for n, entry in enumerate(objects, 1))
    for _ in each(places, lambda found: _draw(*found, canvas)):
        pass
    segments = []
    for place, mask in masks_of_map(np.asarray(canvas)):
        label = objects[place - 1]["label"]
        is_group = label not in NAMES.values() and label.endswith(GROUP)
        label = label.removesuffix(GROUP) if is_group else label
        segments.append(Segment(label, mask, instance=False if is_group else None))
    return replace(image, segments=segments)


def _draw(place: int, entry: dict, canvas: Image.Image) -> None:
    if entry.get("deleted") or entry["label"] == NOT_DRAWN:
        return
    corners = check_points(entry["polygon"], canvas.height, canvas.width)
    if len(corners) >= 2:
        # Whole numbers as such: Pillow rounds others in its own way.
        points = [
            tuple(int(v) if v == int(v) else v for v in corner) for corner in corners.tolist()
        ]
        ImageDraw.Draw(canvas).polygon(points, fill=place)
