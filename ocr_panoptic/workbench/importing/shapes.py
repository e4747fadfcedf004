"""
Masks of shapes other than polygons, and joining the parts of an object.

Coordinates are in pixels from the upper left corner of the image; the first pixel reaches from
(0, 0) to (1, 1).

Shape letters: H, W size of the image.
"""

import base64
import io
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from ocr_panoptic.errors import UserError

from .annotated_image import Segment
from .masks import check_points, mask_of_pixels, mask_of_polygons


def polygon(points: Sequence[Sequence[float]], height: int, width: int) -> dict:
    """Return the mask of a polygon with corners (x, y); it is empty with fewer than three."""
    return mask_of_polygons([check_points(points, height, width)], height, width)


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
        rotation: angle in degrees, clockwise.
        pivot: point of the rotation, by default the centre.
    """
    x0, y0, x1, y1 = corners
    points = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], np.float64)
    center = points.mean(0) if pivot is None else np.asarray(pivot, np.float64)
    cos, sin = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
    turned = (points - center) @ np.array([[cos, sin], [-sin, cos]]) + center
    return polygon(turned, height, width)


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
        center: x and y.
        radii: radii along x and y, before the rotation.
        rotation: angle in degrees, clockwise, about the centre.
    """
    (cx, cy), (rx, ry) = center, radii
    if not (rx >= 0 and ry >= 0 and math.isfinite(cx + cy + rx + ry + rotation)):
        raise UserError(f"an ellipse at ({cx}, {cy}) has the radii {rx} and {ry}, expected from 0")
    if not rx * ry:
        return mask_of_pixels(np.zeros((height, width), bool))
    x = np.arange(width)[None, :] + 0.5 - cx
    y = np.arange(height)[:, None] + 0.5 - cy
    cos, sin = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
    along, across = (cos * x + sin * y) / rx, (cos * y - sin * x) / ry
    return mask_of_pixels(np.hypot(along, across) <= 1)


def placed(part: np.ndarray, left: int, top: int, height: int, width: int) -> dict:
    """Return the mask of an image in which ``part``, bool [h, w], begins at (left, top)."""
    rows, columns = part.shape
    if left < 0 or top < 0 or left + columns > width or top + rows > height:
        raise UserError(
            f"a mask of {columns}x{rows} pixels at x {left}, y {top} does not lie in the image of "
            f"{width}x{height}"
        )
    pixels = np.zeros((height, width), bool)
    pixels[top : top + rows, left : left + columns] = part
    return mask_of_pixels(pixels)


def read_png(content: bytes) -> np.ndarray:
    """Return the pixels of a PNG inside another file, [h, w] or [h, w, channels]."""
    with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
        return np.asarray(picture)


def read_base64_png(text: str, height: int, width: int) -> np.ndarray:
    """
    Return the pixels of a PNG given as base64 text.

    Returns:
        [height, width] or [height, width, channels].
    """
    pixels = read_png(base64.b64decode(text))
    if pixels.shape[:2] != (height, width):
        raise UserError(
            f"the mask must be a PNG of {width}x{height} pixels, found "
            f"{pixels.shape[1]}x{pixels.shape[0]}"
        )
    return pixels


def join_parts(parts: Iterable[tuple[Hashable | None, Segment]]) -> list[Segment]:
    """
    Return segments in painting order, with the parts of each object joined into a segment.

    A joined segment is painted at the place of its last part. If a segment in between covers pixels
    of an earlier part, they are removed, so that the painted result does not change.

    Args:
        parts: key and segment of each part; parts with equal keys and labels form an object, and a
            part with key None is an object by itself.
    """
    parts = list(parts)
    members: dict[Hashable, list[int]] = {}
    for place, (key, segment) in enumerate(parts):
        members.setdefault(place if key is None else (key, segment.label), []).append(place)
    result = {}
    for places in members.values():
        last = parts[places[-1]][1]
        if len(places) > 1:
            pixels = np.zeros(last.mask["size"], bool)
            for place in range(places[0], places[-1] + 1):
                if place in places:
                    pixels |= parts[place][1].pixels()
                else:
                    pixels &= ~parts[place][1].pixels()
            last = replace(last, mask=mask_of_pixels(pixels))
        result[places[-1]] = last
    return [result[place] for place in sorted(result)]
