"""
Cityscapes: ``*_instanceIds.png`` or ``*_polygons.json`` for each image.

A file is named ``<city>/<city>_<sequence>_<frame>_gtFine_instanceIds.png``, its image
``<city>/<city>_<sequence>_<frame>_leftImg8bit.png``, or both without the last parts. Polygons are
drawn by Pillow in the order of the file, as in cityscapesscripts, which gives identical PNGs.
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
    files_below,
    image_with_stem,
    read_each,
    read_object,
    require_images,
)

FIRST_THING = 24  # this and higher label ids have instances
GROUP = "group"  # suffix for objects without separate outlines: "cargroup"
NOT_DRAWN = "license plate"  # cityscapesscripts keeps the pixels below it

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
    Find the images that have PNGs of instance ids.

    An id of 1000 or more is an object whose label id is id // 1000; a smaller id is the label id of
    a region.

    Args:
        source: folder such as ``gtFine/train``.
        images: folder such as ``leftImg8bit/train``.
    """
    images = require_images(images, f"{source}: Cityscapes' annotations")
    files = [(str(path), path) for path in files_below(source, ("_instanceIds.png",))]
    return Annotations(files, partial(_image_of, source=source, images=images), _read_png)


def read_cityscapes_polygons(source: Path, images: Path | None) -> Annotations:
    """
    Find the images that have JSON files of polygons. Any classes are allowed.

    A label that ends in "group" is a region of its class. Covered parts of polygons are dropped, as
    in Cityscapes' own PNGs.

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
            f"the ids {unknown[:5]} are not label ids of Cityscapes. Are they train ids, or ids of "
            "other classes?"
        )
    return replace(image, segments=segments)


def _read_polygons(image: AnnotatedImage, path: Path) -> AnnotatedImage:
    content = read_object(path)
    check_size(image, content.get("imgHeight"), content.get("imgWidth"))
    objects = content["objects"]
    canvas = Image.new("I", (image.width, image.height), 0)
    places = ((f"object {n - 1}", (n, entry)) for n, entry in enumerate(objects, 1))
    for _ in read_each(places, lambda found: _draw(*found, canvas)):
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
        # Pillow rounds floats in its own way, so whole numbers become int.
        points = [
            tuple(int(v) if v == int(v) else v for v in corner) for corner in corners.tolist()
        ]
        ImageDraw.Draw(canvas).polygon(points, fill=place)
