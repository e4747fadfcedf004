"""
Read LabelMe's JSON files, one for each image: https://github.com/wkentaro/labelme

Pillow draws polygons, rectangles and circles with the pixels on their borders, as in LabelMe; masks
are copied. Later shapes cover earlier shapes. Shapes with equal ``group_id`` and label are parts of
one object.
"""

import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path, PureWindowsPath

import numpy as np

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import read_json

from .annotated_image import AnnotatedImage, Segment, join_parts
from .masks import CENTRES, check_points, drawn, mask_of_polygons, placed, read_base64_png
from .reading import (
    Annotations,
    check_size,
    files_below,
    image_file,
    read_each,
    read_object,
    require_images,
)

logger = logging.getLogger(__name__)

# Kind of each shape that has an area -> smallest number of points.
_FEWEST = {"polygon": 3, "oriented_rectangle": 3, "rectangle": 2, "circle": 2, "mask": 0}
_WITHOUT_AREA = ("point", "points", "line", "linestrip")

FileEntry = tuple[Path, dict]  # a JSON file, and its imagePath, imageHeight and imageWidth


def read_labelme(source: Path, images: Path | None) -> Annotations:
    """Find the images that have LabelMe files; warn of other JSON files."""
    if images is not None:
        require_images(images, str(source))
    places = ((str(path), path) for path in files_below(source, (".json",)))
    heads = [*read_each(places, _head)]
    entries = [(str(path), (path, head)) for path, head in heads if head]
    strange = [str(path.relative_to(source)) for path, head in heads if not head]
    if not entries:
        raise UserError(
            f"{source / strange[0]}: is not a LabelMe file: it has no imagePath or no shapes."
        )
    if strange:
        logger.warning(
            f"{source}: {len(strange)} of {len(heads)} JSON files are not LabelMe files and left "
            f"out: {first_few(strange)}"
        )

    def find(entry: FileEntry) -> AnnotatedImage:
        path, head = entry
        image = image_file(images or source, _image_names(source, images, path, head["imagePath"]))
        check_size(image, head["imageHeight"], head["imageWidth"])
        return image

    return Annotations(entries, find, _read_file)


def _head(path: Path) -> tuple[Path, dict]:
    """
    Return the path, and the file's imagePath, imageHeight and imageWidth as a dict.

    The dict is empty if the file is not a LabelMe file.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not {"shapes", "imagePath"} <= content.keys():
        return path, {}
    return path, {key: content.get(key) for key in ("imagePath", "imageHeight", "imageWidth")}


def _image_names(source: Path, images: Path | None, path: Path, text: str) -> list[str]:
    """
    Return the paths at which to look for an image, relative to the folder of images.

    In order: ``text`` itself, if it leads into this folder; the image's file name in the same
    subfolder as the JSON; and the file name only.

    Args:
        path: path of the JSON, below ``source``.
        text: path of the image in the JSON, in Windows or POSIX notation.
    """
    written = PureWindowsPath(text)
    folder = os.path.abspath(images or source)
    given = os.path.relpath(os.path.abspath(path.parent / written.as_posix()), folder)
    inside = given != ".." and not given.startswith("../")
    names = [given] if inside else []
    names += [(path.parent.relative_to(source) / written.name).as_posix(), written.name]
    return list(dict.fromkeys(names))


def _read_file(image: AnnotatedImage, entry: FileEntry) -> AnnotatedImage:
    shapes = read_object(entry[0])["shapes"]
    kinds = [_kind(shape) for shape in shapes]
    places = (
        (f"shape {n} ({s.get('label')!r})", s)
        for n, s in enumerate(shapes)
        if kinds[n] not in _WITHOUT_AREA
    )
    segments = join_parts(read_each(places, partial(_part, image)))
    left_out = [kind for kind in kinds if kind in _WITHOUT_AREA]
    return replace(image, segments=segments, left_out=left_out)


def _kind(shape: dict) -> str:
    """Return the kind of a shape, or "points" if it has too few points for an area."""
    kind = shape.get("shape_type") or "polygon"  # very old files have no shape_type
    return "points" if len(shape["points"]) < _FEWEST.get(kind, 0) else kind


def _part(image: AnnotatedImage, shape: dict) -> tuple[int | None, Segment]:
    """Return a shape's ``group_id`` and its segment."""
    kind, label, size = _kind(shape), shape.get("label"), (image.height, image.width)
    if label in (None, ""):
        raise UserError("has no label")
    if kind not in _FEWEST:
        raise UserError(f"is of an unknown kind {kind!r}; there are {', '.join(_FEWEST)}")
    points = check_points(shape["points"], *size)
    if kind in ("polygon", "oriented_rectangle") or (kind == "rectangle" and len(points) == 4):
        mask = mask_of_polygons([points], *size, CENTRES)
    elif len(points) != 2:
        raise UserError(f"must have two points, found {len(points)}")
    elif kind == "rectangle":
        mask = drawn("rectangle", np.sort(points, axis=0), *size)
    elif kind == "circle":
        radius = np.hypot(*(points[1] - points[0]))
        box = check_points([points[0] - radius, points[0] + radius], *size)
        mask = drawn("ellipse", box, *size)
    else:
        (left, top), (right, bottom) = points.astype(int).tolist()
        pixels = read_base64_png(shape["mask"], bottom - top + 1, right - left + 1)
        mask = placed(pixels > 0, left, top, *size)
    is_box = kind in ("rectangle", "oriented_rectangle")
    return shape.get("group_id"), Segment(str(label), mask, is_box=is_box)
