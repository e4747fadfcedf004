"""LabelMe's JSON, one for each image: https://github.com/wkentaro/labelme

Areas become masks: polygons, rectangles and circles as LabelMe draws them, by Pillow and with the
pixels on their borders; masks as they are. A later shape covers an earlier one; those of one
``group_id`` that have the same label are parts of one object.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path, PureWindowsPath

import numpy as np

from ocr_panoptic.errors import UserError

from .annotated_image import AnnotatedImage, Segment
from .masks import CENTRES, check_points, mask_of_drawing, mask_of_polygons
from .reading import check_size, each, files_below, image_file, read_object, require_images
from .shapes import join_parts, placed, read_base64_png

_WITHOUT_AREA = ("point", "points", "line", "linestrip")


def read_labelme(source: Path, images: Path | None) -> Iterator[AnnotatedImage]:
    """Yield the images.

    Args:
        source: folder with the JSON files, perhaps in folders below it.
        images: folder of the images, by default that of the JSON files.
    """
    if images is not None:
        require_images(images, str(source))
    try:
        files = files_below(source, (".json",))
    except UserError as error:
        if not any(source.rglob("*.xml")):
            raise
        raise UserError(
            f'{error} Its XML is of another, older LabelMe (of MIT, and CVAT\'s "LabelMe 3.0"), '
            'which is not read: export it as another format; from CVAT as "CVAT for images 1.1", '
            "for --from cvat."
        ) from error
    yield from each(((str(path), path) for path in files), partial(_read_file, source, images))


def _read_file(source: Path, images: Path | None, path: Path) -> AnnotatedImage:
    content = read_object(path)
    if not {"shapes", "imagePath"} <= content.keys():
        raise UserError("is not a file of LabelMe: it has no imagePath or no list of shapes.")
    try:
        names = _image_names(source, images, path, content["imagePath"])
        image = image_file(images or source, names)
    except UserError as error:
        if content.get("imageData") is None:
            raise
        raise UserError(
            f"{error} The JSON has a copy of the image; docs/imports.md tells how to write it."
        ) from error
    size = content.get("imageHeight"), content.get("imageWidth")
    if size != (None, None):  # which LabelMe writes, but others may not
        check_size(image, *size)
    shapes = ((f"shape {n} ({s.get('label')!r})", s) for n, s in enumerate(content["shapes"]))
    return replace(image, segments=join_parts(each(shapes, partial(_part, image))))


def _part(image: AnnotatedImage, shape: dict) -> tuple[int | None, Segment]:
    """Return group and segment of a shape."""
    kind = shape.get("shape_type") or "polygon"  # very old files do not say it
    if kind in _WITHOUT_AREA:
        raise UserError(f"a {kind} has no area. Delete it, or draw a polygon")
    if kind not in _MASKS:
        raise UserError(f"is of an unknown kind {kind!r}; there are {', '.join(_MASKS)}")
    points = check_points(shape["points"], image.height, image.width)
    mask = _MASKS[kind](points, shape, image.height, image.width)
    return shape.get("group_id"), Segment(shape["label"], mask)


def _image_names(source: Path, images: Path | None, path: Path, text: str) -> list[str]:
    """Return the names that the image may have below the folder of images.

    It is where the JSON says; or else, in a folder of images of their own, where the JSON is in its
    own folder, or at the top.

    Args:
        text: path of the image from the folder of the JSON, as Windows or others write it.
    """
    written = PureWindowsPath(text)
    folder = os.path.abspath(images or source)
    said = os.path.relpath(os.path.abspath(path.parent / written.as_posix()), folder)
    inside = said != ".." and not said.startswith("../")
    if images is None:
        if not inside:
            raise UserError(
                f"its image {text!r} lies outside {source}. Give the folder of the images."
            )
        return [said]
    names = [said] if inside else []
    return names + [(path.parent.relative_to(source) / written.name).as_posix(), written.name]


def _polygon(points: np.ndarray, shape: dict, height: int, width: int) -> dict:
    if len(points) < 3:
        raise UserError(f"it has three points or more, found {len(points)}")
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
