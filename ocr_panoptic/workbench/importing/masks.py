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
from numpy.typing import ArrayLike
from PIL import Image, ImageDraw
from pycocotools import mask as mask_util

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.segment_runs import SegmentRuns, placed_run_lengths

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
            f"a mask of {columns}x{rows} pixels at x {left}, y {top} extends beyond the image of "
            f"{width}x{height} pixels"
        )
    mask = placed_run_lengths(part, (top, left), (height, width))
    return {**mask, "counts": mask["counts"].encode("ascii")}


def window_of(mask: dict) -> tuple[tuple[slice, slice], np.ndarray]:
    """Return the rows and columns of a mask's bounding box, and the mask in it, bool [h, w]."""
    height = mask["size"][0]
    x, y, columns, rows = map(int, mask_util.toBbox(mask))
    # The runs go down the columns; only those in the columns of the box are expanded.
    ends = _decompressed(mask["counts"]).cumsum().clip(x * height, (x + columns) * height)
    inside = np.repeat(np.arange(len(ends)) % 2 == 1, np.diff(ends, prepend=x * height))
    window = inside.reshape(columns, height).T[y : y + rows]
    return (slice(y, y + rows), slice(x, x + columns)), window


def corners_of(numbers: Sequence[float]) -> np.ndarray:
    """Convert a list x, y, x, y, ... to points [N, 2]; raise UserError for an odd length."""
    if len(numbers) % 2:
        raise UserError(
            f"expected x and y of each corner, without confidence or key points, found an odd "
            f"number of values, {len(numbers)}"
        )
    return np.reshape(numbers, (-1, 2))


def check_points(points: object, height: int, width: int) -> np.ndarray:
    """
    Return points (x, y) as float64 [N, 2].

    Raise UserError if a point is invalid or far outside the image.
    """
    try:
        array = np.array(points, np.float64)
    except (ValueError, TypeError, OverflowError):
        array = np.full(1, np.nan)
    if not array.size:
        return np.empty((0, 2))
    if array.ndim != 2 or array.shape[1] != 2 or not np.isfinite(array).all():
        raise UserError("a polygon must be a list of points with two numbers each")
    reach = max(height, width)
    outside = (array < -reach).any(1) | (array > (width + reach, height + reach)).any(1)
    if outside.any():
        x, y = array[outside][0]
        raise UserError(
            f"the point ({x:g}, {y:g}) of a polygon is far outside the image of {width}x{height} "
            "pixels. Are its coordinates for another image size?"
        )
    return array


def is_box(corners: np.ndarray) -> bool:
    """Return whether a polygon, float [N, 2], is an axis-aligned rectangle."""
    if len(corners) == 5 and (corners[0] == corners[4]).all():  # closed
        corners = corners[:4]
    flat = np.roll(corners, -1, axis=0) == corners
    return len(corners) == 4 and bool((flat.sum(1) == 1).all() and (flat[0] != flat[1]).any())


def is_traced(corners: ArrayLike, step: float = 0.0) -> bool:
    """
    Return whether a polygon, [N, 2], goes from pixel to pixel, as OpenCV traces masks.

    Its corners are whole numbers (text files round them), its sides horizontal, vertical and
    diagonal, and many of them one pixel long. Outlines along the edges of pixels have no diagonals.

    Args:
        step: distance, in pixels, between neighbouring coordinates that the file can hold.
    """
    tolerance = np.clip(step, 0.05, 0.4)  # every number is within 0.5 of a whole number
    corners = np.asarray(corners, np.float64)
    pixels = np.rint(corners)
    if len(corners) < 8 or np.abs(corners - pixels).max() > tolerance:
        return False
    across, down = np.abs(np.roll(pixels, -1, axis=0) - pixels).T
    diagonal, straight = across == down, (across == 0) | (down == 0)
    short = np.maximum(across, down) <= 1
    shares = (diagonal | straight).mean(), (diagonal & ~straight).mean(), short.mean()
    return bool(shares[0] > 0.9 and shares[1] > 0.1 and shares[2] > 0.25)


def mask_of_polygons(
    polygons: Sequence[object], height: int, width: int, through: str | None = None
) -> dict:
    """
    Return the mask of the union of polygons. Polygons with fewer than three corners are left out.

    Args:
        polygons: corners (x, y) of each polygon; invalid corners raise UserError.
        through: EDGES (the default) if polygons follow the edges of pixels, CENTRES if they pass
            through the centres of border pixels, whose coordinates are whole numbers.
    """
    checked = [check_points(points, height, width) for points in polygons]
    checked = [points for points in checked if len(points) >= 3]
    if not checked:
        return mask_of_pixels(np.zeros((height, width), bool))
    if through == CENTRES:
        # Pillow would cut off fractions, which come from coordinates relative to the size.
        whole = [np.floor(points + 0.5) for points in checked]
        return mask_util.merge([drawn("polygon", points, height, width) for points in whole])
    flat = [points.ravel().tolist() for points in checked]
    return mask_util.merge(mask_util.frPyObjects(flat, height, width))


def drawn(shape: str, points: np.ndarray, height: int, width: int) -> dict:
    """
    Return the mask of a "polygon", "rectangle" or "ellipse" that Pillow draws with its border.

    Args:
        points: polygon corners, or two opposite corners of a rectangle or an ellipse's box, [N, 2].
    """
    # Only these rows and columns of the image are drawn. The columns begin at 0, because Pillow
    # rounds the crossings of sides in float32.
    top = min(max(int(points[:, 1].min()), 0), height - 1)
    right, bottom = (
        min(max(int(end), 0), size - 1) for end, size in zip(points.max(0), (width, height))
    )
    picture = Image.new("L", (right + 1, bottom - top + 1))
    draw = getattr(ImageDraw.Draw(picture), shape)
    draw([(x, y - top) for x, y in np.trunc(points).tolist()], fill=1, outline=1)
    return placed(np.asarray(picture) > 0, 0, top, height, width)


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
    reach = max(abs(rx), abs(ry)) + 1
    (left, right), (top, bottom) = (
        (max(int(c - reach), 0), min(int(c + reach) + 1, size))
        for c, size in ((cx, width), (cy, height))
    )
    if not rx * ry or left >= right or top >= bottom:
        return mask_of_pixels(np.zeros((height, width), bool))
    x = np.arange(left, right)[None, :] + 0.5 - cx
    y = np.arange(top, bottom)[:, None] + 0.5 - cy
    cos, sin = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
    along, across = (cos * x + sin * y) / rx, (cos * y - sin * x) / ry
    return placed(np.hypot(along, across) <= 1, left, top, height, width)


def mask_of_rle(rle: dict, height: int, width: int) -> dict:
    """Check a COCO RLE, compressed or uncompressed, and return the compressed mask."""
    if rle.get("size") != [height, width]:
        raise UserError(
            f"the RLE has size {rle.get('size')!s:.40}, expected the image's {[height, width]} "
            "(height, width)"
        )
    counts = rle["counts"]
    if isinstance(counts, str):
        counts = _decompressed(counts.encode("ascii")).tolist()
    # If an RLE is too short, pycocotools returns uninitialised memory, and merging never ends.
    least, total = min(counts, default=0), sum(counts)
    if least < 0 or total != height * width:
        found = f"include {least}" if least < 0 else f"add up to {total}"
        raise UserError(
            f"the run lengths of an RLE must be non-negative and add up to {height * width} "
            f"pixels, but {found}. Export the annotations again"
        )
    return mask_util.frPyObjects({"size": [height, width], "counts": counts}, height, width)


def _decompressed(text: bytes) -> np.ndarray:
    """
    Return the counts of a compressed RLE, int64 [N].

    Each character holds 5 bits of a number, the lowest bits first, and a sixth bit that is set if
    the number continues. From the fourth number on, each number is stored as the difference from
    the number two places before.
    """
    codes = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    lasts = np.flatnonzero(codes & 32 == 0)  # place of each number's last character
    lengths = np.diff(lasts, prepend=-1)
    shifts = 5 * (np.arange(lengths.sum()) - np.repeat(lasts - lengths + 1, lengths))
    counts = np.add.reduceat((codes[: len(shifts)] & 31) << shifts, lasts - lengths + 1)
    counts -= (codes[lasts] & 16) << shifts[lasts] + 1  # the sign
    counts[1::2] = counts[1::2].cumsum()
    counts[2::2] = counts[2::2].cumsum()
    return counts


def read_png(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
        return np.asarray(picture)


def read_base64_png(text: str, height: int, width: int) -> np.ndarray:
    """Return the pixels [height, width] or [height, width, channels] of a PNG in base64."""
    pixels = read_png(base64.b64decode(text))
    if pixels.shape[:2] != (height, width):
        raise UserError(
            f"expected a mask PNG of {width}x{height} pixels, found "
            f"{pixels.shape[1]}x{pixels.shape[0]}"
        )
    return pixels
