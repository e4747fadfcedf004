"""
Makes masks from maps, polygons and other shapes, as COCO's compressed RLE.

Coordinates are in pixels from the upper left corner of the image; the first pixel reaches from
(0, 0) to (1, 1). ``height`` and ``width`` are the size of the image and of the mask.
"""

import base64
import io
import math
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image, ImageDraw
from pycocotools import mask as mask_util

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.segment_runs import SegmentRuns

EDGES = "edges"  # polygons go along edges of pixels, as in COCO's tools
CENTRES = "centres"  # polygons go through centres of border pixels, as in OpenCV and LabelMe
POLYGONS = (EDGES, CENTRES)


def masks_of_map(values: np.ndarray) -> Iterator[tuple[int, dict]]:
    """Yield (value, mask) for each non-zero value of a map [height, width], in ascending order."""
    runs = SegmentRuns(values)
    for value in runs.ids.tolist():
        if value:
            mask = runs.run_lengths(value)
            yield value, {**mask, "counts": mask["counts"].encode("ascii")}


def mask_of_pixels(pixels: np.ndarray) -> dict:
    return mask_util.encode(np.asfortranarray(pixels, np.uint8))


def placed(part: np.ndarray, left: int, top: int, height: int, width: int) -> dict:
    """Return a mask of the whole image, with ``part``, bool [h, w], placed at (left, top)."""
    rows, columns = part.shape
    if left < 0 or top < 0 or left + columns > width or top + rows > height:
        raise UserError(
            f"a mask of {columns}x{rows} pixels at x {left}, y {top} does not lie in the image of "
            f"{width}x{height}"
        )
    pixels = np.zeros((height, width), bool)
    pixels[top : top + rows, left : left + columns] = part
    return mask_of_pixels(pixels)


def corners_of(numbers: Sequence[float]) -> np.ndarray:
    """Convert a list x, y, x, y, ... to points [N, 2]; raise UserError for an odd length."""
    if len(numbers) % 2:
        raise UserError(
            f"has {len(numbers)} coordinates, expected x and y of each corner, without confidence "
            "or key points"
        )
    return np.reshape(numbers, (-1, 2))


def check_points(points: object, height: int, width: int) -> np.ndarray:
    """
    Return points (x, y) as float64 [N, 2].

    Raise UserError if a point is invalid or far outside the image.
    """
    try:
        found = np.array(points, np.float64)
    except (ValueError, TypeError, OverflowError):
        found = np.full(1, np.nan)
    if not found.size:
        return np.empty((0, 2))
    if found.ndim != 2 or found.shape[1] != 2 or not np.isfinite(found).all():
        raise UserError("a polygon must be a list of points, each two numbers")
    reach = max(height, width)
    outside = (found < -reach).any(1) | (found > (width + reach, height + reach)).any(1)
    if outside.any():
        x, y = found[outside][0]
        raise UserError(
            f"the point ({x:g}, {y:g}) of a polygon lies far outside of the image of "
            f"{width}x{height} pixels. Do its coordinates belong to another size?"
        )
    return found


def is_box(corners: np.ndarray) -> bool:
    """Return whether a polygon, float [N, 2], is an axis-aligned rectangle."""
    if len(corners) == 5 and (corners[0] == corners[4]).all():  # closed
        corners = corners[:4]
    flat = np.roll(corners, -1, axis=0) == corners
    return len(corners) == 4 and bool((flat.sum(1) == 1).all() and (flat[0] != flat[1]).any())


def mask_of_polygons(
    polygons: Sequence[object], height: int, width: int, through: str = EDGES
) -> dict:
    """
    Return the mask of the union of polygons. Polygons with fewer than three corners are left out.

    Args:
        polygons: corners (x, y) of each polygon; invalid corners raise UserError.
        through: EDGES if polygons follow the edges of pixels, CENTRES if they pass through the
            centres of border pixels.
    """
    checked = [check_points(points, height, width) for points in polygons]
    checked = [points for points in checked if len(points) >= 3]
    if not checked:
        return mask_of_pixels(np.zeros((height, width), bool))
    if through == CENTRES:
        return mask_util.merge([drawn("polygon", points, height, width) for points in checked])
    flat = [points.ravel().tolist() for points in checked]
    return mask_util.merge(mask_util.frPyObjects(flat, height, width))


def drawn(shape: str, points: np.ndarray, height: int, width: int) -> dict:
    """
    Return the mask of a "polygon", "rectangle" or "ellipse" that Pillow draws with its border.

    Args:
        points: polygon corners, or two opposite corners of a rectangle or an ellipse's box, [N, 2].
    """
    picture = Image.new("L", (width, height))
    draw = getattr(ImageDraw.Draw(picture), shape)
    draw([(x, y) for x, y in points.tolist()], fill=1, outline=1)
    return mask_of_pixels(np.asarray(picture) > 0)


def rectangle(
    corners: Sequence[float],
    height: int,
    width: int,
    rotation: float = 0.0,
    pivot: Sequence[float] | None = None,
) -> dict:
    """
    Return the mask of a rectangle.

    Args:
        corners: x, y of a corner and x, y of the opposite corner.
        rotation: angle in degrees, clockwise about ``pivot`` (the default is the centre).
    """
    x0, y0, x1, y1 = corners
    points = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], np.float64)
    center = points.mean(0) if pivot is None else np.asarray(pivot, np.float64)
    cos, sin = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
    turned = (points - center) @ np.array([[cos, sin], [-sin, cos]]) + center
    return mask_of_polygons([turned], height, width)


def ellipse(
    center: Sequence[float],
    radii: Sequence[float],
    height: int,
    width: int,
    rotation: float = 0.0,
) -> dict:
    """
    Return the mask of the pixels whose centres lie in an ellipse.

    Args:
        radii: radii along x and y, before the rotation.
        rotation: angle in degrees, clockwise, about the centre.
    """
    (cx, cy), (rx, ry) = center, radii
    if not rx * ry:
        return mask_of_pixels(np.zeros((height, width), bool))
    x = np.arange(width)[None, :] + 0.5 - cx
    y = np.arange(height)[:, None] + 0.5 - cy
    cos, sin = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
    along, across = (cos * x + sin * y) / rx, (cos * y - sin * x) / ry
    return mask_of_pixels(np.hypot(along, across) <= 1)


def mask_of_rle(rle: dict, height: int, width: int) -> dict:
    """Check a COCO RLE, compressed or uncompressed, and return the compressed mask."""
    if rle.get("size") != [height, width]:
        raise UserError(f"the RLE has size {rle.get('size')!s:.40}, the image {[height, width]}")
    counts = _decompressed(rle["counts"]) if isinstance(rle["counts"], str) else rle["counts"]
    # If an RLE is too short, pycocotools returns uninitialised memory, and merging never ends.
    if sum(counts) != height * width or min(counts) < 0:
        raise UserError(
            "the counts of an RLE must not be negative and must add up to the number of pixels, "
            f"{height * width}; they add up to {sum(counts)}"
        )
    return mask_util.frPyObjects({"size": [height, width], "counts": counts}, height, width)


def _decompressed(text: str) -> list[int]:
    """
    Return the counts of a compressed RLE.

    Each character holds 5 bits of a number, the lowest bits first, and a sixth bit that is set if
    the number continues. From the fourth number on, each number is stored as the difference from
    the number two places before.
    """
    counts: list[int] = []
    number = shift = 0
    for code in text.encode("ascii"):
        number |= (code - 48 & 31) << shift
        shift += 5
        if not code - 48 & 32:
            number -= (code - 48 & 16) // 16 << shift  # the sign
            counts.append(number + (counts[-2] if len(counts) > 2 else 0))
            number = shift = 0
    return counts


def read_png(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
        return np.asarray(picture)


def read_base64_png(text: str, height: int, width: int) -> np.ndarray:
    """Return the pixels [height, width] or [height, width, channels] of a PNG in base64."""
    pixels = read_png(base64.b64decode(text))
    if pixels.shape[:2] != (height, width):
        raise UserError(
            f"the mask must be a PNG of {width}x{height} pixels, found "
            f"{pixels.shape[1]}x{pixels.shape[0]}"
        )
    return pixels
