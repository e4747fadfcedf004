"""Label Studio's JSON export: https://labelstud.io/guide/export

Coordinates are percentages of the image's width and height, brush masks are run lengths of its own
(:mod:`.brush`) or PNGs. Both are of the image as its EXIF data turn it, and not as the button that
rotates the view does. A later region covers an earlier one.

Of several annotations of a task that with the mark "ground truth" is taken, else the one that was
changed last. Cancelled (skipped) ones and predictions are not, nor are tasks without others.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ocr_panoptic.data.panoptic.annotations import file_name_faults
from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable, read_json

from .annotated_image import AnnotatedImage, Segment
from .brush import decode_brush
from .masks import mask_of_pixels
from .reading import (
    IMAGE_SUFFIXES,
    check_size,
    each,
    image_file,
    names_of_upload,
    require_images,
    shapes_of,
)
from .shapes import ellipse, polygon, read_base64_png, rectangle

logger = logging.getLogger(__name__)

LOCAL_FILES = "/data/local-files/"
UPLOADS = "/data/upload/"
PNG_URL = "data:image/png;base64,"

# Results that say something of the whole image, of a region besides its label, or of two regions.
WITHOUT_PLACE = {
    *("choices", "taxonomy", "textarea", "rating", "number", "datetime", "ranker", "pairwise"),
    *("relation", "chatmessage"),
}


def read_label_studio(source: Path, images: Path | None) -> Iterator[AnnotatedImage]:
    """
    Args:
        source: the JSON.
        images: folder of the images: of local files their root or a folder below, of uploads the
            project's folder of them or one with the files before they were uploaded.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: it is no such JSON; ``images`` is missing.
        DataFaults: at the end, images that are missing or of another size, and regions that cannot
            be read, have no area, or not exactly one label.
    """
    folder = require_images(images, f"{source}")
    tasks = read_json(source)
    if not isinstance(tasks, list) or not all(
        isinstance(task, dict)
        and isinstance(task.get("data"), dict)
        and isinstance(task.get("annotations"), list)
        for task in tasks
    ):
        raise UserError(
            f'{source}: is no list of tasks with their data and annotations. Export as "JSON", not '
            'as "JSON-MIN" or another format.'
        )
    chosen, several = [], 0
    for task in tasks:
        annotations = [one for one in task["annotations"] if _counts(one)]
        if annotations:
            chosen.append((task, max(annotations, key=_rank)))
            several += len(annotations) > 1
    _tell(source, len(tasks), len(chosen), several)
    yield from each(chosen, partial(_read_task, source, folder))


def _counts(annotation: object) -> bool:
    return (
        isinstance(annotation, dict)
        and isinstance(annotation.get("result"), list)
        and not annotation.get("was_cancelled")
    )


def _rank(annotation: dict) -> tuple:
    changed = annotation.get("updated_at") or annotation.get("created_at") or ""
    return bool(annotation.get("ground_truth")), str(changed), str(annotation.get("id")).zfill(20)


def _tell(source: Path, tasks: int, chosen: int, several: int) -> None:
    if not chosen:
        raise UserError(
            f"{source}: none of its {tasks} tasks has an annotation that was not cancelled."
        )
    if chosen < tasks:
        logger.warning(
            "%s: %d of %d tasks have no annotation, or cancelled ones only, and are left out",
            *(source, tasks - chosen, tasks),
        )
    if several:
        logger.warning(
            "%s: %d tasks have several annotations: the ground truth is taken, else the last",
            *(source, several),
        )


def _read_task(source: Path, folder: Path, chosen: tuple[dict, dict]) -> AnnotatedImage:
    task, annotation = chosen
    where = f"{source}: task {task.get('id')}"
    image = _find_image(folder, task["data"], where)
    regions = ((f"{where}: region {n}", (n, r)) for n, r in _regions(annotation["result"]).items())
    segments = shapes_of(regions, lambda r: _segment(r[1], image, f"{where}: region {r[0]}"))
    return replace(image, segments=segments)


@dataclass
class Region:
    """
    Attributes:
        types: of the results that are of it.
        value: what they say, in one.
        others: what else they have.
    """

    types: set[str] = field(default_factory=set)
    value: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)


def _regions(results: list) -> dict[str, Region]:
    """The regions by their id; several controls may say something of one."""
    regions: dict[str, Region] = {}
    for number, result in enumerate(results):
        if not isinstance(result, dict) or (kind := str(result.get("type"))) in WITHOUT_PLACE:
            continue
        region = regions.setdefault(str(result.get("id", f"number {number}")), Region())
        region.types.add(kind)
        region.others |= result
        if isinstance(value := result.get("value"), dict):
            region.value |= value
    return regions


def _segment(region: Region, image: AnnotatedImage, where: str) -> Segment:
    if region.others.get("item_index"):
        raise UserError("is of the second or a later image of its task; a task must have one")
    kinds = {kind.removesuffix("labels") for kind in region.types} - {""}
    if len(kinds) != 1 or not kinds <= _MASKS.keys():
        raise UserError(
            f"is a {' and '.join(sorted(region.types))}, and has no area that is known; there are "
            f"{', '.join(_MASKS)}, and each with labels"
        )
    listed = [names for key, names in region.value.items() if key.endswith("labels")]
    labels = {str(name) for names in listed if isinstance(names, list) for name in names}
    if len(labels) != 1:
        raise UserError(f"must have one label, found {sorted(labels) or 'none'}")
    height, width = (region.others.get(f"original_{side}") for side in ("height", "width"))
    check_size(image, height, width, where)
    try:
        mask = _MASKS[kinds.pop()](region.value, image.height, image.width)
    except (KeyError, TypeError, OverflowError) as error:
        raise UserError(f"cannot be read ({type(error).__name__}: {error})") from error
    return Segment(labels.pop(), mask)


Value = dict[str, Any]


def _brush(value: Value, height: int, width: int) -> dict:
    return mask_of_pixels(decode_brush(value["rle"], height, width))


def _bitmask(value: Value, height: int, width: int) -> dict:
    if not isinstance(url := value["imageDataURL"], str) or not url.startswith(PNG_URL):
        raise UserError(f"imageDataURL must begin with {PNG_URL}")
    pixels = read_base64_png(url.removeprefix(PNG_URL), height, width)
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


def _find_image(folder: Path, data: dict[str, Any], where: str) -> AnnotatedImage:
    paths = {
        key: path
        for key, value in data.items()
        if isinstance(value, str) and (path := image_path(value))
    }
    if len(paths) != 1:
        raise UserError(
            f"{where}: expected data with one image, found {printable(paths or sorted(data))}."
        )
    ((key, path),) = paths.items()
    for fault in file_name_faults(path):
        raise UserError(f"{where}: {key} {data[key]!r}: {fault}")
    parts = path.split("/")
    names = ["/".join(parts[first:]) for first in range(len(parts))]
    names += names_of_upload(parts[-1])
    return image_file(folder, list(dict.fromkeys(names)), f"{where}: {key} {data[key]!r}")


def image_path(reference: str) -> str | None:
    """The path in a reference to an image: of a local file below the root of these, of an upload
    below the folder of all, of a URL below its host; None where it is of no image."""
    try:
        url = urlsplit(reference)
        path = unquote(url.path)
        if path.startswith(LOCAL_FILES):
            path = parse_qs(url.query).get("d", [""])[0]
    except ValueError:
        return None
    path = path.removeprefix(UPLOADS).lstrip("/")
    return path if os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES else None
