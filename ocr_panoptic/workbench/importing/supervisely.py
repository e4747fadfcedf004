"""
Reads Supervisely projects, in which each data set has folders ``img`` and ``ann``.

OpenCV draws polygons and rectangles with their borders, as in Supervisely; bitmaps are copied.
Figures without an area (points, lines) are left out.
"""

import base64
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ocr_panoptic.errors import UserError

from .annotated_image import AnnotatedImage, Segment, join_parts
from .masks import check_points, mask_of_pixels, placed, read_png
from .reading import Annotations, check_size, files_below, image_file, read_each, read_object


def read_supervisely(source: Path, images: Path | None = None) -> Annotations:
    """
    Return the annotated images of a Supervisely project.

    Later figures cover earlier figures. Figures with the same class and ``instance`` are parts of
    one object.
    """
    if images is not None:
        raise UserError(f"{source}: a project contains its images. Do not give a folder of images.")

    def find(path: Path) -> AnnotatedImage:
        data_set = path.parent.parent
        image = image_file(data_set / "img", [path.name.removesuffix(".json")])
        return replace(image, name=(data_set.relative_to(source) / image.name).as_posix())

    annotations = [path for path in files_below(source, (".json",)) if path.parent.name == "ann"]
    return Annotations([(str(path), path) for path in annotations], find, _read_image)


def _read_image(image: AnnotatedImage, path: Path) -> AnnotatedImage:
    content = read_object(path)
    check_size(image, content["size"]["height"], content["size"]["width"])
    objects = content["objects"]
    kinds = [figure["geometryType"] for figure in objects]
    left_out = [kind for kind in kinds if kind not in _MASKS]
    figures = ((f"object {n}", f) for n, f in enumerate(objects) if kinds[n] in _MASKS)
    segments = join_parts(read_each(figures, partial(_part, image)))
    return replace(image, segments=segments, left_out=left_out)


def _part(image: AnnotatedImage, figure: dict) -> tuple[str | None, Segment]:
    kind = figure["geometryType"]
    mask = _MASKS[kind](figure, image.height, image.width)
    segment = Segment(figure["classTitle"], mask, is_box=kind == "rectangle")
    return figure.get("instance"), segment


def _polygon(figure: dict, height: int, width: int) -> dict:
    """Return the mask of a polygon with its border; holes are cut out with their borders."""
    import cv2

    points = figure["points"]
    listed = (points["exterior"], *points.get("interior", ()))
    rings = [check_points(ring, height, width).round().astype(np.int32) for ring in listed]
    if len(rings[0]) < 3:
        return mask_of_pixels(np.zeros((height, width), bool))
    corners = np.concatenate(rings).clip(0, (width - 1, height - 1))
    (left, top), (right, bottom) = corners.min(0).tolist(), corners.max(0).tolist()
    pixels = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    for place, ring in enumerate(rings):
        if len(ring) >= 3:
            cv2.fillPoly(pixels, [ring - (left, top)], int(place == 0))
    return placed(pixels > 0, left, top, height, width)


def _bitmap(figure: dict, height: int, width: int) -> dict:
    """Return the mask of a figure's bitmap: a PNG in base64, with or without zlib compression."""
    content = base64.b64decode(figure["bitmap"]["data"])
    if not content.startswith(b"\x89PNG"):
        content = zlib.decompress(content)
    values = read_png(content)
    if values.ndim == 3:
        # Supervisely reads the alpha channel if there is one.
        values = values[..., -1] if values.shape[2] in (2, 4) else values.max(axis=2)
    left, top = figure["bitmap"]["origin"]
    return placed(values != 0, left, top, height, width)


def _rectangle(figure: dict, height: int, width: int) -> dict:
    (left, top), (right, bottom) = figure["points"]["exterior"]
    ring = [(left, top), (right, top), (right, bottom), (left, bottom)]
    return _polygon({"points": {"exterior": ring}}, height, width)


_MASKS = {
    "polygon": _polygon,
    "bitmap": _bitmap,
    "alpha_mask": _bitmap,
    "rectangle": _rectangle,
}
