"""
Reads Label Studio's JSON export: https://labelstud.io/guide/export

Coordinates are percentages of the image's width and height; brush masks are Label Studio's run
lengths or PNGs. Both refer to the image after its EXIF rotation, but before the user's rotation in
Label Studio. Later regions cover earlier ones. Predictions and cancelled annotations are skipped.
"""

import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable
from ocr_panoptic.formats.other_tools import read_export, unreadable

from .annotated_image import AnnotatedImage, Segment, join_parts
from .masks import ellipse, is_traced, mask_of_pixels, mask_of_polygons, read_base64_png, rectangle
from .reading import (
    IMAGE_SUFFIXES,
    Annotations,
    check_size,
    image_file,
    names_of_upload,
    read_each,
    require_images,
)

logger = logging.getLogger(__name__)

LOCAL_FILES = "/data/local-files/"
UPLOADS = "/data/upload/"
PNG_URL = "data:image/png;base64,"

# Types of results without pixels: they describe an image or a region, or relate two regions.
WITHOUT_PLACE = {
    *("choices", "taxonomy", "textarea", "rating", "number", "datetime", "ranker", "pairwise"),
    *("relation", "chatmessage"),
}
_WITHOUT_AREA = {"keypoint", "vector"}
_SHAPES = ("brush", "magicwand", "bitmask", "polygon", "rectangle", "ellipse")


def read_label_studio(
    source: Path, images: Path | None, polygons: str | None = None
) -> Annotations:
    """
    Return the annotated images of a Label Studio JSON.

    For local files, ``images`` is the root of Label Studio's local files or a folder below it. For
    uploads, ``images`` is the project's upload folder or a folder with the original files.
    """
    folder = require_images(images, source)
    tasks = read_export(source)
    if not isinstance(tasks, list) or not all(
        isinstance(task, dict) and {"data", "annotations"} <= task.keys() for task in tasks
    ):
        fault = f"{source}: not a list of tasks with data and annotations. In Label Studio, "
        fault += 'export "JSON", not "JSON-MIN".'
        raise unreadable(source, tasks, fault, "label-studio")
    chosen = []  # (place, (task, annotation to read)) of each image
    several = 0  # number of tasks with several annotations
    for task in tasks:
        annotations = [a for a in task["annotations"] if not a.get("was_cancelled")]
        if annotations:
            several += len(annotations) > 1
            chosen.append((f"{source}: task {task.get('id')}", (task, max(annotations, key=_rank))))
    if len(chosen) < len(tasks):
        logger.warning(
            f"{source}: left out {len(tasks) - len(chosen)} of {len(tasks)} tasks, because they "
            "have no annotations, or only cancelled ones"
        )
    if several:
        logger.warning(
            f"{source}: {several} task(s) with several annotations; of each, the annotation marked "
            "as ground truth is used, else the latest"
        )
    return Annotations(chosen, partial(_find_image, folder), partial(_read_task, polygons=polygons))


def _rank(annotation: dict) -> tuple:  # the ground truth is highest, then the last changed
    changed = annotation.get("updated_at") or annotation.get("created_at") or ""
    return bool(annotation.get("ground_truth")), str(changed), str(annotation.get("id")).zfill(20)


def _find_image(folder: Path, chosen: tuple[dict, dict]) -> AnnotatedImage:
    data = chosen[0]["data"]
    texts = [value for value in data.values() if isinstance(value, str)]
    paths = [path for path in map(image_path, texts) if path]
    if len(paths) != 1:
        raise UserError(
            f"expected one image in the task's data, found {printable(paths or sorted(data))}"
        )
    parts = paths[0].split("/")
    names = ["/".join(parts[first:]) for first in range(len(parts))]
    return image_file(folder, [*names, *names_of_upload(parts[-1])])


def image_path(reference: str) -> str | None:
    """
    Return the image path in a URL or other reference; None if the reference names no image.

    Label Studio's folder for local files or uploads is removed from the path.
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


def _read_task(
    image: AnnotatedImage, chosen: tuple[dict, dict], polygons: str | None
) -> AnnotatedImage:
    left_out = []
    # Several controls may describe the same region.
    regions: dict[str, list[dict]] = {}
    for number, result in enumerate(chosen[1]["result"]):
        if (kind := result["type"].removesuffix("labels")) in _WITHOUT_AREA:
            left_out.append(kind)
        elif result["type"] not in WITHOUT_PLACE:
            regions.setdefault(str(result.get("id", f"number {number}")), []).append(result)
    places = ((f"region {name}", results) for name, results in regions.items())
    segments = list(read_each(places, partial(_segment, image, polygons)))
    # A box may be the parent of the one shape with its label: both are the same object.
    parents = [
        (results[0].get("parentID"), s.label) for results, s in zip(regions.values(), segments)
    ]
    boxes = {(name, s.label) for name, s in zip(regions, segments) if s.is_box}
    keys = [
        parent[0] if parent in boxes and parents.count(parent) == 1 else name
        for name, parent in zip(regions, parents)
    ]
    return replace(image, segments=join_parts(zip(keys, segments)), left_out=left_out)


def _segment(image: AnnotatedImage, polygons: str | None, results: list[dict]) -> Segment:
    region: dict[str, Any] = {}
    value: dict[str, Any] = {}
    for result in results:
        region |= result
        value |= result["value"]
    if region.get("item_index"):
        raise UserError(
            "the region is on the second or a later image of its task, but a task must have only "
            "one image. Split the task into one for each image, and export again."
        )
    types = {result["type"] for result in results}
    kinds = {kind.removesuffix("labels") for kind in types} - {""}
    if len(kinds) != 1 or not kinds <= {*_SHAPES}:
        raise UserError(
            f"unknown region type {' and '.join(sorted(types))}. Use labelled regions of the types "
            f"{', '.join(_SHAPES)}"
        )
    labels = {name for key, names in value.items() if key.endswith("labels") for name in names}
    if len(labels) != 1:
        raise UserError(f"expected one label for the region, found {sorted(labels) or 'none'}")
    check_size(image, region.get("original_height"), region.get("original_width"))
    (kind,) = kinds
    size = (image.height, image.width)
    mask = _mask(kind, value, *size, polygons)
    traced = kind == "polygon" and is_traced(_corners(value, *size))
    return Segment(labels.pop(), mask, is_box=kind == "rectangle", is_traced=traced)


def _corners(value: dict[str, Any], height: int, width: int) -> list[tuple[float, float]]:
    return [(x * width / 100, y * height / 100) for x, y in value["points"]]


def _mask(kind: str, value: dict[str, Any], height: int, width: int, polygons: str | None) -> dict:
    def pixels(x: str, y: str) -> tuple[float, float]:
        return value[x] * width / 100, value[y] * height / 100

    match kind:
        case "polygon":
            if value.get("closed") is False:
                raise UserError("the polygon is not closed; finish or delete it")
            return mask_of_polygons([_corners(value, height, width)], height, width, polygons)
        case "rectangle":
            (x, y), (columns, rows) = pixels("x", "y"), pixels("width", "height")
            corners = (x, y, x + columns, y + rows)
            return rectangle(corners, height, width, value.get("rotation", 0), pivot=(x, y))
        case "ellipse":
            center, radii = pixels("x", "y"), pixels("radiusX", "radiusY")
            return ellipse(center, radii, height, width, value.get("rotation", 0))
        case "bitmask":
            rgba = read_base64_png(value["imageDataURL"].removeprefix(PNG_URL), height, width)
            if rgba.ndim != 3 or rgba.shape[2] != 4:
                raise UserError("the mask must be a PNG with transparency (RGBA)")
            return mask_of_pixels(rgba[..., 3] > 0)
        case _:
            return mask_of_pixels(decode_brush(value["rle"], height, width))


def decode_brush(code: list[int], height: int, width: int) -> np.ndarray:
    """
    Return a brush mask, bool [height, width], from the run lengths of @thi.ng/rle-pack.

    The code is a stream of bits, with the highest bit of each byte first. Its header has the number
    of values (32 bits), the number of bits per value minus 1 (5 bits), and four field widths minus
    1 (4 bits each). Each of the following blocks has a flag (1 bit: 1 for a repeated value, 0 for a
    list of values), the index of a field width (2 bits), the number of values minus 1 (in a field
    with this width), and the repeated value or the list (8 bits per value). The values are the
    channels of an RGBA image, row by row; pixels with alpha above 0 belong to the mask.
    """
    bits = bin(int.from_bytes(b"\1" + bytes(code), "big"))[3:]  # drops "0b1", keeps leading zeros
    place = 0

    def take(size: int) -> int:
        nonlocal place
        place += size
        if place > len(bits):
            raise UserError("the brush mask (rle) is truncated. Export the task again")
        return int(bits[place - size : place], 2)

    count, value_bits = take(32), take(5) + 1
    if count != height * width * 4 or value_bits != 8:
        raise UserError(
            f"the brush mask (rle) has {count} values of {value_bits} bits, expected "
            f"{height * width * 4} values of 8 bits for {width}x{height} pixels. Export the task "
            "again"
        )
    sizes = [take(4) + 1 for _ in range(4)]
    values = bytearray()
    while len(values) < count:
        is_repeated = take(1)
        length = take(sizes[take(2)]) + 1
        if is_repeated:
            values += take(8).to_bytes(1, "big") * length
        else:
            values += take(8 * length).to_bytes(length, "big")
    if len(values) > count:
        raise UserError(f"the brush mask (rle) has more than {count} values. Export the task again")
    return np.frombuffer(values, np.uint8).reshape(height, width, 4)[..., 3] > 0
