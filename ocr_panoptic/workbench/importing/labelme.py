"""LabelMe's JSON, one for each image: https://github.com/wkentaro/labelme

Areas become masks: polygons, rectangles and circles as LabelMe draws them, by Pillow and with the
pixels on their borders; masks as they are. A later shape covers an earlier one; those of one
``group_id`` that have the same label are parts of one object.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PureWindowsPath

import numpy as np

from ocr_panoptic.errors import UserError

from .annotated_image import AnnotatedImage, Segment
from .masks import CENTRES, check_points, mask_of_drawing, mask_of_polygons
from .reading import (
    check_size,
    each,
    files_below,
    image_file,
    read_object,
    require_images,
    shapes_of,
)
from .shapes import join_parts, placed, read_base64_png

_WITHOUT_AREA = ("point", "points", "line", "linestrip")


def read_labelme(source: Path, images: Path | None) -> Iterator[AnnotatedImage]:
    """
    Args:
        source: folder with the JSON files, in folders below it if you like.
        images: folder of the images; None: that of the JSON files.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it has no JSON.
        DataFaults: at the end, files that are none of LabelMe, images that are missing or of
            another size, and shapes that cannot be read or have no area.
    """
    if images is not None:
        require_images(images, str(source))
    try:
        files = files_below(source, (".json",))
    except ValueError as error:
        raise UserError(f"{error}{_note_of_xml(source)}") from error
    yield from each(files, partial(_read_file, source, images))


def _note_of_xml(source: Path) -> str:
    if not any(source.rglob("*.xml")):
        return ""
    return (
        ' Its XML is of another, older LabelMe (of MIT, and CVAT\'s "LabelMe 3.0"), which is not '
        'read: export it as another format; of CVAT\'s as "CVAT for images 1.1", for --from cvat.'
    )


def _read_file(source: Path, images: Path | None, path: Path) -> AnnotatedImage:
    content = read_object(path)
    shapes = content.get("shapes")
    if not isinstance(shapes, list) or not isinstance(content.get("imagePath"), str):
        raise UserError(f"{path}: is no file of LabelMe: it has no imagePath or no list of shapes.")
    names = _image_names(source, images, path, content["imagePath"])
    try:
        image = image_file(images or source, names, f"{path}")
    except ValueError as error:
        if content.get("imageData") is None:
            raise
        raise UserError(
            f"{error} The JSON has a copy of the image; docs/imports.md tells how to write it."
        ) from error
    size = [content.get(key) for key in ("imageHeight", "imageWidth")]
    if size != [None, None]:  # which LabelMe writes, but others may not
        check_size(image, *size, f"{path}")
    parts = shapes_of(_shapes(shapes, path), partial(_part, image=image))
    return replace(image, segments=join_parts(parts))


def _shapes(shapes: list, path: Path) -> Iterator[tuple[str, object]]:
    for number, shape in enumerate(shapes):
        label = shape.get("label") if isinstance(shape, dict) else None
        yield f"{path}: shape {number}" + (f" ({label!r})" if label else ""), shape


def _part(shape: object, image: AnnotatedImage) -> tuple[int | None, Segment]:
    if not isinstance(shape, dict) or not isinstance(label := shape.get("label"), str):
        raise UserError("has no label")
    return _group(shape), Segment(label, _mask(shape, image.height, image.width))


def _image_names(source: Path, images: Path | None, path: Path, text: str) -> list[str]:
    """List the names that the image may have below the folder of images: where the JSON says; or
    else, in a folder of images of their own, where the JSON is in its own, or at the top.

    Args:
        text: the image's path from the folder of the JSON, as Windows or others write it.
    """
    written = PureWindowsPath(text)
    folder = os.path.abspath(images or source)
    said = os.path.relpath(os.path.abspath(path.parent / written.as_posix()), folder)
    inside = said != ".." and not said.startswith("../")
    if images is None:
        if not inside:
            raise UserError(
                f"{path}: its image {text!r} lies outside {source}. Give the folder of the images."
            )
        return [said]
    names = [said] if inside else []
    return names + [(path.parent.relative_to(source) / written.name).as_posix(), written.name]


def _group(shape: dict) -> int | None:
    group = shape.get("group_id")
    if group is not None and not isinstance(group, int):
        raise UserError(f"group_id must be an integer, found {group!r}")
    return group


def _mask(shape: dict, height: int, width: int) -> dict:
    kind = shape.get("shape_type") or "polygon"  # very old files do not say it
    if not isinstance(kind, str) or kind not in (*_WITHOUT_AREA, *_MASKS):
        raise UserError(f"is of an unknown kind {kind!r}; there are {', '.join(_MASKS)}")
    if kind in _WITHOUT_AREA:
        raise UserError(f"a {kind} has no area. Delete it, or draw a polygon")
    try:
        points = np.array(shape.get("points"), np.float64)
    except (TypeError, ValueError, OverflowError):
        points = np.empty(0)
    if points.ndim != 2 or points.shape[1] != 2:
        raise UserError("points must be a list of [x, y]")
    return _MASKS[kind](points, shape, height, width)


def _polygon(points: np.ndarray, shape: dict, height: int, width: int) -> dict:
    if len(points) < 3:
        raise UserError(f"it has three points or more, found {len(points)}")
    return mask_of_polygons([check_points(points, height, width)], height, width, CENTRES)


def _rectangle(points: np.ndarray, shape: dict, height: int, width: int) -> dict:
    if len(points) == 4:
        return _polygon(points, shape, height, width)
    points = _two(points)
    corners = _corners([points.min(0), points.max(0)], height, width)
    return mask_of_drawing(lambda draw: draw.rectangle(corners, fill=1, outline=1), height, width)


def _circle(points: np.ndarray, shape: dict, height: int, width: int) -> dict:
    center, border = _two(points)
    radius = np.hypot(*(border - center))
    corners = _corners([center - radius, center + radius], height, width)
    return mask_of_drawing(lambda draw: draw.ellipse(corners, fill=1, outline=1), height, width)


def _corners(points: Sequence, height: int, width: int) -> list[tuple[float, float]]:
    return list(map(tuple, check_points(points, height, width).tolist()))


def _brush(points: np.ndarray, shape: dict, height: int, width: int) -> dict:
    corners = check_points(_two(points), height, width)
    (left, top), (right, bottom) = corners.astype(int).tolist()
    columns, rows = right - left + 1, bottom - top + 1
    pixels = read_base64_png(shape.get("mask"), rows, columns)
    if pixels.ndim != 2:
        raise UserError("the mask must have one channel")
    return placed(pixels > 0, left, top, height, width)


def _two(points: np.ndarray) -> np.ndarray:
    if len(points) != 2:
        raise UserError(f"it has two points, found {len(points)}")
    return points


Mask = Callable[[np.ndarray, dict, int, int], dict]
_MASKS: dict[str, Mask] = {
    "polygon": _polygon,
    "rectangle": _rectangle,
    "oriented_rectangle": _polygon,
    "circle": _circle,
    "mask": _brush,
}
