"""Masks as COCO's compressed RLE, from maps, polygons and RLEs of any origin.

Shape letters: H, W size of the image.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL import Image, ImageDraw
from pycocotools import mask as mask_util

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.segment_runs import SegmentRuns

MAX_POINTS = 1_000_000  # of the polygons of one object
EDGES = "edges"  # of pixels: polygons as COCO's own tools draw them
# Of border pixels: polygons as OpenCV finds them, and LabelMe draws them.
CENTRES = "centres"
POLYGONS = (EDGES, CENTRES)


def masks_of_map(values: np.ndarray) -> Iterator[tuple[int, dict]]:
    """(value, mask of it) of each value of a map but 0, ascending.

    Args:
        values: non-negative integers [H, W].
    """
    runs = SegmentRuns(values)
    for value in runs.ids.tolist():
        if value:
            mask = runs.run_lengths(value)
            yield value, {**mask, "counts": mask["counts"].encode("ascii")}


def mask_of_pixels(pixels: np.ndarray) -> dict:
    """The mask of bool [H, W]."""
    return mask_util.encode(np.asfortranarray(pixels, np.uint8))


def check_points(points: Sequence, height: int, width: int) -> np.ndarray:
    """
    Args:
        points: (x, y) of each corner of a polygon in pixels, from a file.

    Returns:
        float64 [N, 2]; with N < 3 it has no pixel.

    Raises:
        ValueError: they are none, or lie further from the image than it is large.
    """
    try:
        found = np.array(points, np.float64)
    except (ValueError, TypeError, OverflowError):
        found = np.full(1, np.nan)
    if not found.size:
        return np.empty((0, 2))
    if found.ndim != 2 or found.shape[1] != 2 or not np.isfinite(found).all():
        raise UserError("a polygon must be a list of points, each two numbers")
    if len(found) > MAX_POINTS:
        raise UserError(f"a polygon has {len(found)} points, at most {MAX_POINTS:,} are drawn")
    reach = max(height, width)
    if found.min() < -reach or (found > (width + reach, height + reach)).any():
        worst = found[np.abs(found - (width / 2, height / 2)).max(axis=1).argmax()]
        raise UserError(
            f"the point ({worst[0]:g}, {worst[1]:g}) of a polygon lies far outside of the image of "
            f"{width}x{height} pixels. Are its coordinates those of another size?"
        )
    return found


def mask_of_polygons(
    polygons: Sequence[np.ndarray], height: int, width: int, through: str = EDGES
) -> dict:
    """The union of polygons.

    Args:
        polygons: float64 [N, 2] each, (x, y) in pixels, of :func:`check_points`.
        through: of :data:`POLYGONS`. Edges are drawn by pycocotools; of centres, whole numbers,
            the pixels on the border are part of it.
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
    """The mask of what a function draws with a colour that is not 0, by Pillow."""
    picture = Image.new("L", (width, height))
    draw(ImageDraw.Draw(picture))
    return mask_of_pixels(np.asarray(picture) > 0)


def mask_of_rle(rle: object, height: int, width: int) -> dict:
    """COCO's RLE of a file, compressed or not, as a compressed one.

    Raises:
        ValueError: it is none, or of another size.
    """
    counts = rle.get("counts") if isinstance(rle, dict) else None
    if not isinstance(counts, list | str):
        raise UserError('an RLE must be an object with "size" and "counts"')
    if rle.get("size") != [height, width]:
        raise UserError(
            f"the RLE is of size {str(rle.get('size')):.40}, the image is {[height, width]} "
            "([height, width])"
        )
    if isinstance(counts, str):
        numbers = _decompressed(counts)
    else:
        if not all(type(number) is int and 0 <= number <= height * width for number in counts):
            raise UserError("the counts of an RLE must be integers of at least 0")
        numbers = np.array(counts, np.int64)
    # No sum of numbers within the image can run over.
    within = (numbers >= 0) & (numbers <= height * width)
    if not within.all() or numbers.sum() != height * width:
        raise UserError(
            f"the counts of an RLE must be at least 0 and add up to the image's {height * width} "
            f"pixels, they add up to {numbers.sum()}"
        )
    # pycocotools follows counts wherever they lead, so it gets only those that have been checked.
    return mask_util.frPyObjects(
        {"size": [height, width], "counts": numbers.tolist()}, height, width
    )


def _decompressed(text: str) -> np.ndarray:
    """The counts of COCO's compressed RLE: numbers of 5 bits a character, the lowest first, a sixth
    bit says that the number goes on; from the fourth on they are differences to the last but one.
    """
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64) - 48
    if not codes.size:
        return codes
    more = codes & 32 != 0
    if codes.min() < 0 or codes.max() > 63 or more[-1]:
        raise UserError("the counts of an RLE are no compressed counts of COCO")
    starts = np.flatnonzero(np.concatenate(([True], ~more[:-1])))
    lengths = np.diff(starts, append=codes.size)
    if lengths.max() > 7:  # 35 bits, more than any image has pixels
        raise UserError("the counts of an RLE are no compressed counts of COCO")
    shifts = 5 * (np.arange(codes.size) - np.repeat(starts, lengths))
    numbers = np.add.reduceat((codes & 31) << shifts, starts)
    last = codes[starts + lengths - 1]
    numbers -= np.where(last & 16 != 0, np.int64(1) << 5 * lengths, 0)  # the sign goes on
    for parity in (1, 2):  # the first number stands alone
        numbers[parity::2] = np.cumsum(numbers[parity::2])
    return numbers
