"""The size of a picture as Detectron2 will see it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from PIL import Image

EXIF_ORIENTATION = 274
QUARTER_TURNS = (5, 6, 7, 8)  # the orientations that swap width and height


class PictureSize(NamedTuple):
    width: int
    height: int
    note: str  # how it was turned, for messages; "" mostly


def read_size(path: Path) -> PictureSize:
    """Decode a picture wholly; its size, turned as its EXIF data say.

    Raises:
        ValueError: it is broken or truncated, or no picture; the reason only, without the name.
    """
    try:
        with Image.open(path) as picture:
            picture.load()
            width, height = picture.size
            orientation = picture.getexif().get(EXIF_ORIENTATION)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"is broken or truncated ({error})") from error
    if orientation in QUARTER_TURNS:
        note = f" once turned as its EXIF orientation {orientation} says"
        return PictureSize(height, width, note)
    return PictureSize(width, height, "")
