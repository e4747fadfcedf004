"""
Reads LabelMe's JSON files, one for each image: https://github.com/wkentaro/labelme

As in LabelMe, Pillow draws polygons, rectangles and circles, including their border pixels. Masks
are copied. Later shapes cover earlier shapes. Shapes with the same ``group_id`` and label are parts
of one object.
"""

import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path, PureWindowsPath

import numpy as np

from ocr_panoptic.data.faults import first_few
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.other_tools import read_export, unreadable

from .annotated_image import AnnotatedImage, Segment, join_parts
from .masks import check_points, drawn, placed, read_base64_png
from .reading import Annotations, check_size, files_below, image_file, read_each, require_images

logger = logging.getLogger(__name__)

# Kind of each shape that has an area -> smallest number of points.
_FEWEST = {"polygon": 3, "rectangle": 2, "circle": 2, "mask": 0}
_TURNED = ("oriented_rectangle", "rotation")  # LabelMe's and X-AnyLabeling's; corners as points
_FEWEST |= dict.fromkeys(_TURNED, 3)
_WITHOUT_AREA = ("point", "points", "line", "linestrip")


def read_labelme(source: Path, images: Path | None) -> Annotations:
    """Return the annotated images of LabelMe files; warn about other JSON files."""
    files = files_below(source, (".json",))
    folder = require_images(images or source, source)
    contents = read_each(((str(path), path) for path in files), read_export)
    entries, strange = [], []
    for path, content in zip(files, contents, strict=True):
        if isinstance(content, dict) and {"shapes", "imagePath"} <= content.keys():
            content.pop("imageData", None)  # the image as base64
            entries.append((str(path), (path, content)))
        else:
            strange.append(str(path.relative_to(source)))
    if not entries:
        fault = f'{path}: not a LabelMe file: "imagePath" or "shapes" is missing.'
        raise unreadable(path, content, fault)
    if strange:
        logger.warning(
            f"{source}: left out {len(strange)} of {len(files)} JSON files, because they are not "
            f"LabelMe files: {first_few(strange)}"
        )

    def find(entry: tuple[Path, dict]) -> AnnotatedImage:
        path, content = entry
        written = PureWindowsPath(content["imagePath"])  # reads POSIX paths, too
        given = os.path.relpath(os.path.abspath(path.parent / written.as_posix()), folder)
        beside = (path.parent.relative_to(source) / written.name).as_posix()
        names = [name for name in (given, beside, written.name) if not name.startswith("..")]
        image = image_file(folder, names)
        check_size(image, content.get("imageHeight"), content.get("imageWidth"))
        return image

    return Annotations(entries, find, _read_file)


def _read_file(image: AnnotatedImage, entry: tuple[Path, dict]) -> AnnotatedImage:
    shapes = entry[1]["shapes"]
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
    kind, label, size = _kind(shape), shape.get("label"), (image.height, image.width)
    if label in (None, ""):
        raise UserError("the shape has no label")
    if kind not in _FEWEST:
        raise UserError(f"unknown shape_type {kind!r}; expected one of {', '.join(_FEWEST)}")
    points = check_points(shape["points"], *size)
    if kind in ("polygon", *_TURNED) or (kind == "rectangle" and len(points) == 4):
        mask = drawn("polygon", points, *size)
    elif len(points) != 2:
        raise UserError(f"expected two points for a {kind}, found {len(points)}")
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
    is_box = kind in ("rectangle", *_TURNED)
    return shape.get("group_id"), Segment(str(label), mask, is_box=is_box)
