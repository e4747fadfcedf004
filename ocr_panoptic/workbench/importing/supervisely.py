"""Supervisely's projects: ``meta.json``, and for each data set a folder ``img`` and one ``ann``.

Polygons are drawn as Supervisely draws them, by OpenCV with their borders; bitmaps are read as they
are. Figures without area (points, lines) and rectangles are left out, with a warning.
"""

import base64
import logging
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ocr_panoptic.errors import MissingFileError, UserError
from ocr_panoptic.formats.files import printable

from .annotated_image import AnnotatedImage, Segment
from .masks import check_points, mask_of_pixels
from .reading import check_size, each, files_below, image_file, read_object, shapes_of
from .shapes import join_parts, placed, read_png

logger = logging.getLogger(__name__)

META = "meta.json"
_SUFFIX = ".json"


def read_supervisely(source: Path, images: Path | None = None) -> Iterator[AnnotatedImage]:
    """
    Figures in the order in which they are listed, a later one on top. Those of a class with the
    same ``instance`` are parts of one object.

    Args:
        source: the folder of a project, or of one data set in it.
        images: None; images lie in the project.

    Raises:
        FileNotFoundError: no ``meta.json`` in the folder or above it, or no data set.
        ValueError: ``meta.json`` is broken; or a folder of images was given.
        DataFaults: at the end, faults of single images.
    """
    if images is not None:
        raise UserError(f"{source}: a project has its images in itself, give no folder of images.")
    classes = _classes(source)
    annotations = [path for path in files_below(source, (_SUFFIX,)) if path.parent.name == "ann"]
    if not annotations:
        raise MissingFileError(f"{source}: no annotation; expected data sets with ann/*.json.")
    notes: Counter[str] = Counter()
    yield from each(annotations, lambda path: _read_image(path, source, classes, notes))
    for note, times in sorted(notes.items()):
        logger.warning(f"{source}: {times} figures {note}.")


def _classes(source: Path) -> set[str]:
    folder = Path(os.path.realpath(source))  # of a loop of links, too
    places = [folder / META, *(parent / META for parent in list(folder.parents)[:4])]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise MissingFileError(
            f"{source / META}: not found. Give the folder of a project, or of a data set in it."
        )
    listed = read_object(path).get("classes")
    if not isinstance(listed, list):
        raise UserError(f"{path}: expected a list of classes.")
    titles = [entry.get("title") for entry in listed if isinstance(entry, dict)]
    return {title for title in titles if isinstance(title, str)}


def _read_image(path: Path, source: Path, classes: set[str], notes: Counter[str]) -> AnnotatedImage:
    data_set = path.parent.parent
    image = image_file(data_set / "img", [path.name.removesuffix(_SUFFIX)], str(path))
    content = read_object(path)
    size = content.get("size") if isinstance(content.get("size"), dict) else {}
    check_size(image, size.get("height"), size.get("width"), str(path))
    objects = content.get("objects")
    if not isinstance(objects, list):
        raise UserError(f"{path}: expected a list of objects.")

    def part(figure: object) -> tuple[str | None, Segment] | None:
        mask = _mask(figure, classes, image)
        if mask is None:
            kind = printable(figure.get("geometryType"))[:100]
            notes[f"are left out, as each is a {kind}"] += 1
            return None
        key = figure.get("instance")
        return None if key is None else str(key), Segment(figure["classTitle"], mask)

    places = ((f"{path}: object {place}", figure) for place, figure in enumerate(objects))
    name = (data_set.relative_to(source) / image.name).as_posix()
    return replace(image, name=name, segments=join_parts(shapes_of(places, part)))


def _mask(figure: object, classes: set[str], image: AnnotatedImage) -> dict | None:
    """The mask of a figure; None where it is of another kind than polygon or bitmap."""
    if not isinstance(figure, dict):
        raise UserError("expected an object of JSON")
    if not isinstance(title := figure.get("classTitle"), str) or title not in classes:
        raise UserError(f"classTitle {title!r:.100} is not in {META}")
    match figure.get("geometryType"):
        case "polygon":
            return _polygon(figure.get("points"), image)
        case "bitmap":
            return _bitmap(figure.get("bitmap"), image)
    return None


def _polygon(points: object, image: AnnotatedImage) -> dict:
    """Filled with its border; its holes are emptied with theirs."""
    import cv2

    points = points if isinstance(points, dict) else {}
    exterior, interior = points.get("exterior"), points.get("interior", [])
    if not isinstance(exterior, list) or not isinstance(interior, list):
        raise UserError('a polygon needs points with "exterior" and "interior"')
    pixels = np.zeros((image.height, image.width), np.uint8)
    for ring, value in ((exterior, 1), *((hole, 0) for hole in interior)):
        corners = check_points(ring, image.height, image.width)
        if len(corners) >= 3:
            cv2.fillPoly(pixels, [corners.round().astype(np.int32)], value)
    return mask_of_pixels(pixels > 0)


def _bitmap(bitmap: object, image: AnnotatedImage) -> dict:
    """A PNG, compressed again and in base64, and where its upper left pixel lies."""
    bitmap = bitmap if isinstance(bitmap, dict) else {}
    origin, data = bitmap.get("origin"), bitmap.get("data")
    if (
        not isinstance(data, str)
        or not isinstance(origin, list)
        or [type(value) for value in origin] != [int, int]
    ):
        raise UserError('a bitmap needs "data" and "origin" [x, y]')
    try:
        content = base64.b64decode(data, validate=True)
        if content[:8] != b"\x89PNG\r\n\x1a\n":
            limit = 4 * image.height * image.width + 65536
            content = zlib.decompressobj().decompress(content, limit)
        values = read_png(content, image.height, image.width)
    except (ValueError, zlib.error) as error:
        raise UserError(f"the bitmap is broken ({printable(error)})") from error
    if values.ndim == 3:
        # As Supervisely reads it: opacity where there is one.
        values = values[..., -1] if values.shape[2] in (2, 4) else values.any(axis=2)
    return placed(values != 0, *origin, image.height, image.width)
