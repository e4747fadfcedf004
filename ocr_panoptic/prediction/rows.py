"""Images that are read, and PNGs that are written, row by row. H, W: size of the image."""

import struct
import sys
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ocr_panoptic.pictures import read_picture

COMPRESSION = 3  # of zlib: the default takes twice the time and saves a tenth


def pixel_count(path: Path) -> int:
    """
    Width times height from the header; more than any limit where Pillow refuses to open it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no image.
    """
    if not path.is_file():  # a pipe would be waited for
        what = "is no regular file" if path.exists() else "not found"
        raise FileNotFoundError(f"{path}: image {what}")
    try:
        with Image.open(path) as picture:
            return picture.width * picture.height
    except Image.DecompressionBombError:
        return sys.maxsize
    except Exception:  # Pillow raises what the broken bytes lead to; the reader says it
        return 0


def open_rows(path: Path, image_format: str) -> tuple[Callable[[int, int], torch.Tensor], int, int]:
    """
    An image that is decoded as its rows are asked for: by pyvips, or, where it is not installed,
    wholly by Pillow.

    Args:
        image_format: channel order, "BGR" or "RGB".

    Returns:
        (rows, H, W); ``rows(top, bottom)`` is uint8 [3,bottom-top,W]. From call to call neither of
        them may fall.

    Raises:
        ValueError: the file is broken, is no image of 8 bits, or needs pyvips; it is named.
    """
    try:
        import pyvips
    except ImportError:
        try:
            picture = read_picture(path, image_format)
        except ValueError as error:
            raise ValueError(
                f"{error} Or install pyvips, which reads images row by row: "
                "pip install 'pyvips[binary]'"
            ) from error
        return (lambda top, bottom: _tensor(np.array(picture[top:bottom]))), *picture.shape[:2]
    return _open_vips(pyvips, path, image_format)


def _open_vips(
    pyvips: Any, path: Path, image_format: str
) -> tuple[Callable[[int, int], torch.Tensor], int, int]:
    def reading(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except pyvips.Error as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{path}: image is broken or truncated ({reason}); copy or download it again"
            ) from error

    def opened(access: str) -> Any:
        return pyvips.Image.new_from_file(str(path), access=access, fail_on="error")

    picture = reading(lambda: opened("sequential"))
    if picture.get_typeof("orientation") and picture.get("orientation") != 1:
        # Rows of the turned image are columns of the file: libvips keeps it in a temporary file.
        picture = reading(lambda: opened("random").autorot())
    if picture.format != "uchar" or picture.interpretation not in ("srgb", "b-w"):
        raise ValueError(
            f"{path}: image of {picture.width}x{picture.height} pixels, {picture.interpretation} "
            f"({picture.format}); one that is read row by row has 8 bits, RGB or grey: convert it"
        )
    order = [0, 1, 2] if picture.bands >= 3 else [0, 0, 0]  # without opacity
    order = order if image_format == "RGB" else order[::-1]
    region = pyvips.Region.new(picture)
    width, held, first = picture.width, np.empty((0, picture.width, 3), np.uint8), 0

    def rows(top: int, bottom: int) -> torch.Tensor:
        nonlocal held, first
        known = first + len(held)
        if bottom > known:
            new = reading(lambda: region.fetch(0, known, width, bottom - known))
            shape = bottom - known, width, picture.bands
            new = np.frombuffer(new, np.uint8).reshape(shape)[..., order]
            held = np.concatenate([held[max(top - first, 0) :], new])
            first = bottom - len(held)
        return _tensor(held[top - first : bottom - first])

    return rows, picture.height, width


def _tensor(rows: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(rows).permute(2, 0, 1)


class PngRows(AbstractContextManager):
    """
    Writes a grey PNG from top to bottom; rows that are missing at the end make it unreadable.

    Args:
        path: of the file.
        height, width: of the image.
        dtype: uint8 or uint16.
    """

    def __init__(self, path: Path, height: int, width: int, dtype: np.dtype):
        self._dtype = np.dtype(dtype)
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._file.write(b"\x89PNG\r\n\x1a\n")
        bits = 8 * self._dtype.itemsize
        self._chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0))
        self._compress = zlib.compressobj(COMPRESSION)

    def write(self, rows: np.ndarray) -> None:
        """
        Args:
            rows: the next ones, of the dtype, [n,W].
        """
        content = rows.astype(self._dtype.newbyteorder(">")).view(np.uint8)  # big-endian
        unfiltered = np.zeros((len(rows), 1), np.uint8)  # the filter of each row: none
        data = self._compress.compress(np.hstack([unfiltered, content]).tobytes())
        if data:
            self._chunk(b"IDAT", data)

    def __exit__(self, kind: type | None, *error: object) -> None:
        with self._file:
            if kind is None:
                self._chunk(b"IDAT", self._compress.flush())
                self._chunk(b"IEND", b"")

    def _chunk(self, name: bytes, data: bytes) -> None:
        self._file.write(struct.pack(">I", len(data)) + name + data)
        self._file.write(struct.pack(">I", zlib.crc32(name + data)))
