"""
LabelMe's JSON files, one for each image: https://github.com/wkentaro/labelme

Polygons, rectangles and circles are drawn as LabelMe draws them, by Pillow with the pixels on their
borders; masks are copied. Later shapes cover earlier shapes. Shapes with equal ``group_id`` and
label are parts of an object.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path, PureWindowsPath

import numpy as np

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import read_json

from .annotated_image import AnnotatedImage, Segment
from .masks import CENTRES, check_points, mask_of_drawing, mask_of_polygons
from .reading import (
    Annotations,
    check_size,
    files_below,
    image_file,
    read_each,
    read_object,
    require_images,
)
from .shapes import join_parts, placed, read_base64_png

logger = logging.getLogger(__name__)

_WITHOUT_AREA = ("point", "points", "line", "linestrip")
IGNORE, BACKGROUND = "__ignore__", "_background_"  # LabelMe's predefined classes


def read_labelme(source: Path, images: Path | None) -> Annotations:
    """
    Find the images that have LabelMe files, with a warning about JSON files of other programs.

    Args:
        source: folder with the JSON files, perhaps in folders below it.
        images: folder of the images; the default is the folder of the JSON files.
    """
    if images is not None:
        require_images(images, str(source))
    try:
        files = files_below(source, (".json",))
    except UserError as error:
        if not any(source.rglob("*.xml")):
            raise
        raise UserError(
            f"{error} Its XML files are of an older LabelMe (MIT's, and CVAT's \"LabelMe 3.0\"), "
            'which is not supported: export another format, from CVAT "CVAT for images 1.1" for '
            "--from cvat."
        ) from error
    heads = [
        (str(path), (path, head)) for path, head in read_each(((str(p), p) for p in files), _head)
    ]
    strange = [str(path.relative_to(source)) for _, (path, head) in heads if head is None]
    if len(strange) == len(heads):
        raise UserError(
            f"{source / strange[0]}: is not a LabelMe file: it has no imagePath or no shapes."
        )
    if strange:
        logger.warning(
            f"{source}: {len(strange)} of {len(heads)} JSON files are not LabelMe files and left "
            f"out: {first_few(strange)}"
        )
    entries = [entry for entry in heads if entry[1][1] is not None]
    return Annotations(
        entries, partial(_find, source, images), _read_file, lambda entry: entry[1]["labels"]
    )


FileEntry = tuple[Path, dict]  # a JSON file and its facts about the image


def _head(path: Path) -> tuple[Path, dict | None]:
    """Return a file and its facts about the image; None instead of facts for other files."""
    content = read_json(path)
    if not isinstance(content, dict) or not {"shapes", "imagePath"} <= content.keys():
        return path, None
    has_copy = content.get("imageData") is not None
    keys = ("imagePath", "imageHeight", "imageWidth")
    areas = [s for s in content["shapes"] if isinstance(s, dict) and s.get("label")]
    labels = [str(s["label"]) for s in areas if s.get("shape_type") not in _WITHOUT_AREA]
    return path, {
        **{key: content.get(key) for key in keys},
        **{"has_copy": has_copy, "labels": labels},
    }


def _find(source: Path, images: Path | None, entry: FileEntry) -> AnnotatedImage:
    path, head = entry
    try:
        names = _image_names(source, images, path, head["imagePath"])
        image = image_file(images or source, names)
    except UserError as error:
        hints = ["The JSON has a copy of the image; docs/imports.md tells how to write it."]
        hints = hints if head["has_copy"] else []
        if images is None and PureWindowsPath(head["imagePath"]).parent.name:
            hints.append(f"Its path is {head['imagePath']!r}: give the folder of the images.")
        raise type(error)(" ".join([str(error), *hints])) from error
    check_size(image, head["imageHeight"], head["imageWidth"])
    return image


def _read_file(image: AnnotatedImage, entry: FileEntry) -> AnnotatedImage:
    shapes = read_object(entry[0])["shapes"]
    kinds = [_kind(shape) for shape in shapes]
    left_out = [kind for kind in kinds if kind in _WITHOUT_AREA]
    places = (
        (f"shape {n} ({s.get('label')!r})", s)
        for n, s in enumerate(shapes)
        if kinds[n] not in _WITHOUT_AREA
    )
    segments = join_parts(read_each(places, partial(_part, image)))
    return replace(image, segments=segments, left_out=left_out)


def _kind(shape: dict) -> str:
    """Return the kind of a shape; "points" for a polygon or box with too few points."""
    kind = shape.get("shape_type") or "polygon"  # very old files have no shape_type
    fewest = {"polygon": 3, "oriented_rectangle": 3, "rectangle": 2, "circle": 2}.get(kind, 0)
    return "points" if len(shape["points"]) < fewest else kind


def _part(image: AnnotatedImage, shape: dict) -> tuple[int | None, Segment]:
    """Return a shape's group and segment."""
    kind, label = _kind(shape), shape.get("label")
    if label in (None, ""):
        raise UserError("has no label")
    if kind not in _MASKS:
        raise UserError(f"is of an unknown kind {kind!r}; there are {', '.join(_MASKS)}")
    points = check_points(shape["points"], image.height, image.width)
    mask = _MASKS[kind](points, shape, image.height, image.width)
    is_box = kind in ("rectangle", "oriented_rectangle")
    return shape.get("group_id"), Segment(str(label), mask, is_box=is_box)


def _image_names(source: Path, images: Path | None, path: Path, text: str) -> list[str]:
    """
    Return the names to try below the folder of images.

    They are the path in the JSON, the path that corresponds to the JSON's own, and the file name.

    Args:
        text: path of the image relative to the JSON's folder, in Windows or POSIX notation.
    """
    written = PureWindowsPath(text)
    folder = os.path.abspath(images or source)
    given = os.path.relpath(os.path.abspath(path.parent / written.as_posix()), folder)
    inside = given != ".." and not given.startswith("../")
    names = [given] if inside else []
    names += [(path.parent.relative_to(source) / written.name).as_posix(), written.name]
    return list(dict.fromkeys(names))


def _polygon(points: np.ndarray, shape: dict, height: int, width: int) -> dict:
    return mask_of_polygons([points], height, width, CENTRES)


def _rectangle(points: np.ndarray, shape: dict, height: int, width: int) -> dict:
    if len(points) == 4:
        return _polygon(points, shape, height, width)
    _check_two(points)
    corners = [tuple(points.min(0)), tuple(points.max(0))]
    return mask_of_drawing(lambda draw: draw.rectangle(corners, fill=1, outline=1), height, width)


def _circle(points: np.ndarray, shape: dict, height: int, width: int) -> dict:
    _check_two(points)
    center, radius = points[0], np.hypot(*(points[1] - points[0]))
    corners = check_points([center - radius, center + radius], height, width)
    box = list(map(tuple, corners.tolist()))
    return mask_of_drawing(lambda draw: draw.ellipse(box, fill=1, outline=1), height, width)


def _brush(points: np.ndarray, shape: dict, height: int, width: int) -> dict:
    _check_two(points)
    (left, top), (right, bottom) = points.astype(int).tolist()
    pixels = read_base64_png(shape["mask"], bottom - top + 1, right - left + 1)
    if pixels.ndim != 2:
        raise UserError("the mask must have one channel")
    return placed(pixels > 0, left, top, height, width)


def _check_two(points: np.ndarray) -> None:
    if len(points) != 2:
        raise UserError(f"it has two points, found {len(points)}")


_MASKS: dict[str, Callable[[np.ndarray, dict, int, int], dict]] = {
    "polygon": _polygon,
    "rectangle": _rectangle,
    "oriented_rectangle": _polygon,
    "circle": _circle,
    "mask": _brush,
}
