"""Shapes that annotation tools draw, beside polygons, and the parts of an object.

Coordinates are in pixels from the upper left corner of the image, whose first pixel reaches from
(0, 0) to (1, 1).

Shape letters: H, W size of the image.
"""

import base64
import io
import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from PIL import Image

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.files import printable

from .annotated_image import Segment
from .masks import check_points, mask_of_pixels, mask_of_polygons


def polygon(points: Sequence[Sequence[float]], height: int, width: int) -> dict:
    """
    Args:
        points: (x, y) of each corner; less than three have no pixel.

    Raises:
        ValueError: they are none, or lie far from the image.
    """
    return mask_of_polygons([check_points(points, height, width)], height, width)


def rectangle(
    corners: Sequence[float],
    height: int,
    width: int,
    rotation: float = 0.0,
    pivot: Sequence[float] | None = None,
) -> dict:
    """
    Args:
        corners: x, y of one and x, y of the opposite one.
        rotation: clockwise, in degrees.
        pivot: about which it is rotated; else the centre.

    Raises:
        ValueError: it lies far from the image.
    """
    x0, y0, x1, y1 = corners
    points = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], np.float64)
    center = points.mean(0) if pivot is None else np.asarray(pivot, np.float64)
    cos, sin = _cos_sin(rotation)
    turned = (points - center) @ np.array([[cos, sin], [-sin, cos]]) + center
    return polygon(turned, height, width)


def ellipse(
    center: Sequence[float],
    radii: Sequence[float],
    height: int,
    width: int,
    rotation: float = 0.0,
) -> dict:
    """The pixels whose centres lie in it.

    Args:
        center: x, y.
        radii: in x and y, before it is rotated.
        rotation: clockwise, in degrees, about the centre.

    Raises:
        ValueError: a radius is not above 0, or a number is not finite.
    """
    (cx, cy), (rx, ry) = center, radii
    if not (rx > 0 and ry > 0 and all(map(math.isfinite, (cx, cy, rx, ry)))):
        raise UserError(f"an ellipse at ({cx}, {cy}) has the radii {rx} and {ry}, expected above 0")
    x = np.arange(width)[None, :] + 0.5 - cx
    y = np.arange(height)[:, None] + 0.5 - cy
    cos, sin = _cos_sin(rotation)
    along, across = (cos * x + sin * y) / rx, (cos * y - sin * x) / ry
    return mask_of_pixels(np.hypot(along, across) <= 1)


def placed(part: np.ndarray, left: int, top: int, height: int, width: int) -> dict:
    """A mask of a part of the image.

    Args:
        part: bool [h, w].
        left, top: of its first pixel.

    Raises:
        ValueError: it does not lie in the image.
    """
    rows, columns = part.shape
    if left < 0 or top < 0 or left + columns > width or top + rows > height:
        raise UserError(
            f"a mask of {columns}x{rows} pixels at x {left}, y {top} does not lie in the image of "
            f"{width}x{height}"
        )
    pixels = np.zeros((height, width), bool)
    pixels[top : top + rows, left : left + columns] = part
    return mask_of_pixels(pixels)


def read_base64_png(text: object, height: int, width: int) -> np.ndarray:
    """A PNG that a JSON holds as text, of a size that is known.

    Returns:
        [height, width], or [height, width, channels].

    Raises:
        ValueError: it is none, or of another size.
    """
    try:
        if not isinstance(text, str):
            raise UserError(f"found {type(text).__name__}")
        pixels = read_png(base64.b64decode(text, validate=True), height, width)
        if pixels.shape[:2] != (height, width):
            raise UserError(f"found {pixels.shape[1]}x{pixels.shape[0]} pixels")
    except ValueError as error:
        raise UserError(
            f"the mask must be a PNG of {width}x{height} pixels in base64 ({error})"
        ) from error
    return pixels


def read_png(content: bytes, height: int, width: int) -> np.ndarray:
    """A PNG inside another file, which is no larger than its image.

    Returns:
        [h, w], or [h, w, channels].

    Raises:
        ValueError: it is none, or larger.
    """
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            size = picture.size
            if size[0] <= width and size[1] <= height:
                return np.asarray(picture)
    except Exception as error:  # Pillow raises what the broken bytes lead to
        raise UserError(f"the PNG is broken ({printable(error)})") from error
    raise UserError(
        f"the PNG of {size[0]}x{size[1]} pixels is larger than the image of {width}x{height}"
    )


def join_parts(parts: Iterable[tuple[Hashable | None, Segment]]) -> list[Segment]:
    """Segments in the order in which they are painted, those of one object made one.

    A joined segment has the place of its last part; of the others it lacks what segments in between
    cover, so that each pixel has the segment that it would have had.

    Args:
        parts: each with a key: those of an equal key and label are one object. Key None: by itself.
    """
    parts = list(parts)
    members: dict[Hashable, list[int]] = {}
    for place, (key, segment) in enumerate(parts):
        members.setdefault(place if key is None else (key, segment.label), []).append(place)
    result = {}
    for places in members.values():
        last = parts[places[-1]][1]
        if len(places) > 1:
            last = Segment(last.label, mask_of_pixels(_union(parts, places)), last.instance)
        result[places[-1]] = last
    return [result[place] for place in sorted(result)]


def _union(parts: Sequence[tuple[Hashable | None, Segment]], places: Sequence[int]) -> np.ndarray:
    """bool [H, W]"""
    pixels = np.zeros(parts[0][1].mask["size"], bool)
    for place in range(places[0], places[-1] + 1):
        if place in places:
            pixels |= parts[place][1].pixels()
        else:
            pixels &= ~parts[place][1].pixels()
    return pixels


def _cos_sin(degrees: float) -> tuple[float, float]:
    if not math.isfinite(degrees):
        raise UserError(f"rotation is {degrees}")
    return math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
