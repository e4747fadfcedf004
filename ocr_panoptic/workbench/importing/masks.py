"""
COCO's compressed RLE masks from maps, polygons, and RLEs in files.

Shape letters: H, W size of the image.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL import Image, ImageDraw
from pycocotools import mask as mask_util

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.segment_runs import SegmentRuns

EDGES = "edges"  # polygons go along edges of pixels, as in COCO's tools
CENTRES = "centres"  # polygons go through centres of border pixels, as in OpenCV and LabelMe
POLYGONS = (EDGES, CENTRES)


def masks_of_map(values: np.ndarray) -> Iterator[tuple[int, dict]]:
    """
    Yield each non-zero value of a map with its mask, in ascending order of values.

    Args:
        values: non-negative integers [H, W].
    """
    runs = SegmentRuns(values)
    for value in runs.ids.tolist():
        if value:
            mask = runs.run_lengths(value)
            yield value, {**mask, "counts": mask["counts"].encode("ascii")}


def mask_of_pixels(pixels: np.ndarray) -> dict:
    """Return the mask of pixels given as bool [H, W]."""
    return mask_util.encode(np.asfortranarray(pixels, np.uint8))


def check_points(points: object, height: int, width: int) -> np.ndarray:
    """
    Return a polygon's corners as float64 [N, 2]; a polygon with N < 3 has no pixels.

    Args:
        points: (x, y) of each corner in pixels, unchecked. Points further outside the image than
            its longer side are refused.
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
    if found.min() < -reach or (found > (width + reach, height + reach)).any():
        worst = found[np.abs(found - (width / 2, height / 2)).max(axis=1).argmax()]
        raise UserError(
            f"the point ({worst[0]:g}, {worst[1]:g}) of a polygon lies far outside of the image of "
            f"{width}x{height} pixels. Do its coordinates belong to another size?"
        )
    return found


def is_box(corners: np.ndarray) -> bool:
    """Return whether a polygon, float [N, 2], is a rectangle along the image's sides."""
    if len(corners) == 5 and (corners[0] == corners[4]).all():  # closed
        corners = corners[:4]
    steps = np.roll(corners, -1, axis=0) - corners
    flat = steps == 0
    return len(corners) == 4 and bool((flat.sum(1) == 1).all() and (flat[0] != flat[1]).any())


def mask_of_polygons(
    polygons: Sequence[np.ndarray], height: int, width: int, through: str = EDGES
) -> dict:
    """
    Return the mask of the union of polygons.

    Args:
        polygons: results of :func:`check_points`, float64 [N, 2], (x, y) in pixels.
        through: value of :data:`POLYGONS`. Polygons along edges are drawn by pycocotools; polygons
            through centres, which are whole numbers, include the pixels on their border.
    """
    polygons = [polygon for polygon in polygons if len(polygon) >= 3]
    if not polygons:
        return mask_of_pixels(np.zeros((height, width), bool))
    if through == EDGES:
        flat = [polygon.ravel().tolist() for polygon in polygons]
        return mask_util.merge(mask_util.frPyObjects(flat, height, width))

    def draw(canvas: ImageDraw.ImageDraw) -> None:
        for polygon in polygons:
            canvas.polygon(list(map(tuple, polygon.tolist())), fill=1, outline=1)

    return mask_of_drawing(draw, height, width)


def mask_of_drawing(draw: Callable[[ImageDraw.ImageDraw], None], height: int, width: int) -> dict:
    """Return the mask of the pixels that a function draws with Pillow in a non-zero colour."""
    picture = Image.new("L", (width, height))
    draw(ImageDraw.Draw(picture))
    return mask_of_pixels(np.asarray(picture) > 0)


def mask_of_rle(rle: dict, height: int, width: int) -> dict:
    """Return a file's COCO RLE in compressed form; the RLE may be compressed or not."""
    if rle.get("size") != [height, width]:
        raise UserError(
            f"the RLE has size {rle.get('size')!s:.40}, the image {[height, width]} "
            "([height, width])"
        )
    counts = _decompressed(rle["counts"]) if isinstance(rle["counts"], str) else rle["counts"]
    # If an RLE is too short, pycocotools returns uninitialised memory, and merging never ends.
    if sum(counts) != height * width or min(counts) < 0:
        raise UserError(
            f"the counts of an RLE must be at least 0 and add up to the image's {height * width} "
            f"pixels, they add up to {sum(counts)}"
        )
    return mask_util.frPyObjects({"size": [height, width], "counts": counts}, height, width)


def _decompressed(text: str) -> list[int]:
    """
    Return the counts of a compressed RLE.

    A character holds 5 bits of a number, the lowest first, and a sixth bit that is set if the
    number continues. From the fourth number on, the text has the difference from the number two
    places before.
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
