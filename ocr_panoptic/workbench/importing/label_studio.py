"""
Label Studio's JSON export: https://labelstud.io/guide/export

Coordinates are percentages of the image's width and height; brush masks are Label Studio's run
lengths (:mod:`.brush`) or PNGs. Both refer to the image turned by its EXIF data, without the view's
rotation. Later regions cover earlier regions.

If a task has several annotations, the "ground truth" is read or, without one, the last changed.
Cancelled (skipped) annotations, predictions, and tasks with nothing else are left out.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable, read_json

from .annotated_image import AnnotatedImage, Segment
from .brush import decode_brush
from .masks import mask_of_pixels
from .reading import (
    IMAGE_SUFFIXES,
    Annotations,
    check_size,
    image_file,
    names_of_upload,
    read_each,
    require_images,
)
from .shapes import ellipse, polygon, read_base64_png, rectangle

logger = logging.getLogger(__name__)

LOCAL_FILES = "/data/local-files/"
UPLOADS = "/data/upload/"
PNG_URL = "data:image/png;base64,"

# Results about a whole image, about a region beyond its label, or about two regions.
WITHOUT_PLACE = {
    *("choices", "taxonomy", "textarea", "rating", "number", "datetime", "ranker", "pairwise"),
    *("relation", "chatmessage"),
}
_WITHOUT_AREA = {"keypoint", "vector"}


def read_label_studio(source: Path, images: Path | None) -> Annotations:
    """
    Find the images in a Label Studio JSON.

    Args:
        source: JSON.
        images: folder of the images. For local files it is their root or a folder below it; for
            uploads it is the project's upload folder, or a folder with the original files.
    """
    folder = require_images(images, f"{source}")
    tasks = read_json(source)
    if not isinstance(tasks, list) or not all(
        isinstance(task, dict) and {"data", "annotations"} <= task.keys() for task in tasks
    ):
        raise UserError(
            f'{source}: is not a list of tasks with their data and annotations. Export as "JSON", '
            'not as "JSON-MIN" or another format.'
        )
    chosen, several = [], 0
    for task in tasks:
        annotations = [a for a in task["annotations"] if not a.get("was_cancelled")]
        if annotations:
            chosen.append((f"{source}: task {task.get('id')}", (task, max(annotations, key=_rank))))
            several += len(annotations) > 1
    if not chosen:
        raise UserError(f"{source}: no task has an annotation that was not cancelled.")
    if len(chosen) < len(tasks):
        logger.warning(
            f"{source}: {len(tasks) - len(chosen)} of {len(tasks)} tasks are left out: they have "
            "no annotation that was not cancelled"
        )
    if several:
        logger.warning(
            f"{source}: {several} tasks have several annotations; the ground truth is read, else "
            "the last changed"
        )
    return Annotations(chosen, partial(_find_image, folder), _read_task, _labels)


def _rank(annotation: dict) -> tuple:
    changed = annotation.get("updated_at") or annotation.get("created_at") or ""
    return bool(annotation.get("ground_truth")), str(changed), str(annotation.get("id")).zfill(20)


def _labels(chosen: tuple[dict, dict]) -> list[str]:
    return [
        name
        for result in chosen[1]["result"]
        if (kind := result["type"].removesuffix("labels")) in _MASKS and kind != result["type"]
        for name in result["value"][result["type"]]
    ]


def _read_task(image: AnnotatedImage, chosen: tuple[dict, dict]) -> AnnotatedImage:
    _, annotation = chosen
    left_out = []
    # Several controls may describe the same region.
    regions: dict[str, list[dict]] = {}
    for number, result in enumerate(annotation["result"]):
        if (kind := result["type"].removesuffix("labels")) in _WITHOUT_AREA:
            left_out.append(kind)
        elif result["type"] not in WITHOUT_PLACE:
            regions.setdefault(str(result.get("id", f"number {number}")), []).append(result)
    places = ((f"region {name}", results) for name, results in regions.items())
    segments = list(read_each(places, partial(_segment, image)))
    return replace(image, segments=segments, left_out=left_out)


def _segment(image: AnnotatedImage, results: list[dict]) -> Segment:
    """Return the segment of a region from all results about it."""
    region: dict[str, Any] = {}
    value: dict[str, Any] = {}
    for result in results:
        region |= result
        value |= result["value"]
    if region.get("item_index"):
        raise UserError("is of the second or a later image of its task; a task must have one")
    types = {result["type"] for result in results}
    kinds = {kind.removesuffix("labels") for kind in types} - {""}
    if len(kinds) != 1 or not kinds <= _MASKS.keys():
        raise UserError(
            f"is a {' and '.join(sorted(types))}, not a known shape; there are "
            f"{', '.join(_MASKS)}, and each with labels"
        )
    labels = {name for key, names in value.items() if key.endswith("labels") for name in names}
    if len(labels) != 1:
        raise UserError(f"must have one label, found {sorted(labels) or 'none'}")
    check_size(image, region.get("original_height"), region.get("original_width"))
    (kind,) = kinds
    mask = _MASKS[kind](value, image.height, image.width)
    return Segment(labels.pop(), mask, is_box=kind == "rectangle")


Value = dict[str, Any]


def _brush(value: Value, height: int, width: int) -> dict:
    return mask_of_pixels(decode_brush(value["rle"], height, width))


def _bitmask(value: Value, height: int, width: int) -> dict:
    pixels = read_base64_png(value["imageDataURL"].removeprefix(PNG_URL), height, width)
    if pixels.ndim != 3 or pixels.shape[2] != 4:
        raise UserError("the mask must be a PNG with transparency (RGBA)")
    return mask_of_pixels(pixels[..., 3] > 0)


def _polygon(value: Value, height: int, width: int) -> dict:
    if value.get("closed") is False:
        raise UserError("the polygon is not closed: finish or delete it")
    return polygon([(x * width / 100, y * height / 100) for x, y in value["points"]], height, width)


def _rectangle(value: Value, height: int, width: int) -> dict:
    x, y = value["x"] * width / 100, value["y"] * height / 100
    corners = (x, y, x + value["width"] * width / 100, y + value["height"] * height / 100)
    return rectangle(corners, height, width, value.get("rotation", 0), pivot=(x, y))


def _ellipse(value: Value, height: int, width: int) -> dict:
    center = value["x"] * width / 100, value["y"] * height / 100
    radii = value["radiusX"] * width / 100, value["radiusY"] * height / 100
    return ellipse(center, radii, height, width, value.get("rotation", 0))


_MASKS: dict[str, Callable[[Value, int, int], dict]] = {
    "brush": _brush,
    "magicwand": _brush,
    "bitmask": _bitmask,
    "polygon": _polygon,
    "rectangle": _rectangle,
    "ellipse": _ellipse,
}


def _find_image(folder: Path, chosen: tuple[dict, dict]) -> AnnotatedImage:
    data = chosen[0]["data"]
    texts = [value for value in data.values() if isinstance(value, str)]
    paths = [path for path in map(image_path, texts) if path]
    if len(paths) != 1:
        raise UserError(f"expected data with one image, found {printable(paths or sorted(data))}")
    parts = paths[0].split("/")
    names = [paths[0], *("/".join(parts[first:]) for first in range(1, len(parts)))]
    return image_file(folder, list(dict.fromkeys([*names, *names_of_upload(parts[-1])])))


def image_path(reference: str) -> str | None:
    """
    Return the path that a reference to an image holds, or None for another kind of reference.

    The path is relative to the root of local files, to the folder of uploads, or to a URL's host.
    """
    try:
        url = urlsplit(reference)
        path = unquote(url.path)
        if path.startswith(LOCAL_FILES):
            path = parse_qs(url.query).get("d", [""])[0]
    except ValueError:
        return None
    path = path.removeprefix(UPLOADS).lstrip("/")
    return path if os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES else None
