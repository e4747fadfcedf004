"""
Reads Cityscapes: a file ``*_instanceIds.png`` or ``*_polygons.json`` for each image.

``<city>/<city>_<sequence>_<frame>_gtFine_instanceIds.png`` belongs to the image
``<city>/<city>_<sequence>_<frame>_leftImg8bit.png``; ``_gtFine`` and ``_leftImg8bit`` are
optional. Polygons are drawn exactly as cityscapesscripts draws them.
"""

import re
from collections.abc import Callable
from dataclasses import replace
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
    files_below,
    image_with_stem,
    read_each,
    read_object,
    require_images,
)

FIRST_THING = 24  # label ids from this number on have instances
GROUP = "group"  # suffix of a label for objects without separate outlines: "cargroup"
NOT_DRAWN = "license plate"  # cityscapesscripts keeps the labels below it

NAMES = CITYSCAPES_IGNORED | {number: name for number, name, _, _ in CITYSCAPES_CLASSES}
CITYSCAPES_KINDS = Kinds(
    things=tuple(name for number, name, _, _ in CITYSCAPES_CLASSES if number >= FIRST_THING),
    stuff=tuple(name for number, name, _, _ in CITYSCAPES_CLASSES if number < FIRST_THING),
    ignore=tuple(CITYSCAPES_IGNORED.values()),
    colors={name: color for _, name, _, color in CITYSCAPES_CLASSES},
)

_TAIL = re.compile(r"(_gt[A-Za-z]+)?_(instanceIds\.png|polygons\.json)$")


def read_cityscapes(source: Path, images: Path | None) -> Annotations:
    """
    Return the annotated images of Cityscapes' ``*_instanceIds.png`` files.

    A pixel's value is a label id or, for an object, 1000 * label id + number of the object.
    """
    return _annotations(source, images, "_instanceIds.png", _read_png)


def read_cityscapes_polygons(source: Path, images: Path | None) -> Annotations:
    """Return the annotated images of ``*_polygons.json`` files; classes can have any names."""
    return _annotations(source, images, "_polygons.json", _read_polygons)


def _annotations(source: Path, images: Path | None, suffix: str, read: Callable) -> Annotations:
    folder = require_images(images, source)

    def find(path: Path) -> AnnotatedImage:
        stem = (path.parent / _TAIL.sub("", path.name)).relative_to(source).as_posix()
        return image_with_stem(folder, [f"{stem}_leftImg8bit", stem])

    return Annotations([(str(path), path) for path in files_below(source, (suffix,))], find, read)


def _read_png(image: AnnotatedImage, path: Path) -> AnnotatedImage:
    ids = read_label_image(path).astype(np.int64)
    check_size(image, *ids.shape)
    segments = []
    for value, mask in masks_of_map(ids):
        is_object = value >= CITYSCAPES_OBJECTS
        label = NAMES.get(value // CITYSCAPES_OBJECTS if is_object else value)
        if label is None:
            raise UserError(
                f"{value} is not a Cityscapes label id. Use files with label ids, not train ids."
            )
        segments.append(Segment(label, mask, instance=is_object))
    return replace(image, segments=segments)


def _read_polygons(image: AnnotatedImage, path: Path) -> AnnotatedImage:
    content = read_object(path)
    check_size(image, content.get("imgHeight"), content.get("imgWidth"))
    objects = content["objects"]
    canvas = Image.new("I", (image.width, image.height), 0)
    draw = ImageDraw.Draw(canvas)

    def paint(found: tuple[int, dict]) -> None:
        number, entry = found
        if entry.get("deleted") or entry["label"] == NOT_DRAWN:
            return
        corners = check_points(entry["polygon"], image.height, image.width)
        if len(corners) >= 2:
            # Pillow rounds floats differently, so whole numbers become int.
            points = [
                tuple(int(v) if v == int(v) else v for v in corner) for corner in corners.tolist()
            ]
            draw.polygon(points, fill=number + 1)

    list(read_each(((f"object {n}", (n, entry)) for n, entry in enumerate(objects)), paint))
    segments = []
    for value, mask in masks_of_map(np.asarray(canvas)):
        label = objects[value - 1]["label"]
        is_group = label not in NAMES.values() and label.endswith(GROUP)
        label = label.removesuffix(GROUP) if is_group else label
        segments.append(Segment(label, mask, instance=False if is_group else None))
    return replace(image, segments=segments)
