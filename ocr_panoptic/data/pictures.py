"""Pictures as Detectron2 sees them: their size and their pixels, with errors that name the file."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from detectron2.data.detection_utils import read_image
from detectron2.utils.file_io import PathManager
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
    return _size(path, decode=True)


def header_size(path: str | Path) -> PictureSize:
    """:func:`read_size` from the header alone, which is quick and finds no damage after it."""
    return _size(path, decode=False)


def _size(path: str | Path, decode: bool) -> PictureSize:
    try:
        with Image.open(path) as picture:
            if decode:
                picture.load()
            width, height = picture.size
            orientation = picture.getexif().get(EXIF_ORIENTATION)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"is broken or truncated ({error})") from error
    if orientation in QUARTER_TURNS:
        note = f" once turned as its EXIF orientation {orientation} says"
        return PictureSize(height, width, note)
    return PictureSize(width, height, "")


def read_file(path: str, mode: str, kind: str, error: Exception | None) -> np.ndarray:
    """``read_image(path, mode)``, with an error that names the file."""
    if not PathManager.isfile(path):
        raise FileNotFoundError(
            f"{path}: {kind} not found. Was it moved since the data set was prepared?"
        ) from error
    try:
        return read_image(path, mode)
    except (OSError, SyntaxError) as reason:
        raise ValueError(
            f"{path}: {kind} is broken or truncated ({reason}). Copy or download it again."
        ) from error
