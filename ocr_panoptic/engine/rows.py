"""Images that are read, and PNGs that are written, row by row. H, W: size of the image."""

import gzip
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.pictures import COLOURS, TooLarge, header_size, read_picture
from ocr_panoptic.modeling.large_images import Rows

# Of libvips: (format, interpretation) -> bits. Of 16 the upper 8 are taken, as of whole images.
BITS = {
    ("uchar", "srgb"): 8,
    ("uchar", "b-w"): 8,
    ("ushort", "rgb16"): 16,
    ("ushort", "grey16"): 16,
}
COMPRESSION = 3  # of zlib: the default takes twice the time and saves a tenth


def is_large(path: Path, max_pixels: int, channels: int = COLOURS) -> bool:
    """Return whether an image has more pixels, by its header. False where it cannot be read: the
    reader says why."""
    try:
        size = header_size(path, channels)
    except TooLarge:
        return True
    except ValueError:
        return False
    return size.width * size.height > max_pixels


def rows_of(image: np.ndarray) -> Callable[[], Rows]:
    """Return what begins to read an image [H,W,3] that is in memory."""
    # A copy, for BGR is a view from the last channel to the first.
    rows = lambda top, bottom: _tensor(image[top:bottom].copy())  # noqa: E731
    return lambda: rows


def open_image(path: Path, image_format: str) -> tuple[Callable[[], Rows], int, int]:
    """
    An image that is decoded as its rows are asked for: by pyvips, or, where it is not installed,
    wholly by Pillow.

    Args:
        image_format: channel order, "BGR" or "RGB".

    Returns:
        (read, H, W); each ``read()`` begins at the top.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is broken, of a kind that is not read, or needs pyvips; it is named.
            Damage further down is raised by the rows.
    """
    try:
        import pyvips
    except ImportError:
        try:
            picture = read_picture(path, image_format)
        except ValueError as error:
            raise UserError(
                f"{error} Or install pyvips, which reads images row by row: "
                "pip install 'pyvips[binary]'"
            ) from error
        return rows_of(picture), *picture.shape[:2]
    return _open_vips(pyvips, path, image_format)


def _open_vips(pyvips: Any, path: Path, image_format: str) -> tuple[Callable[[], Rows], int, int]:
    def reading(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except pyvips.Error as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{path}: image is broken or truncated ({reason}); copy or download it again"
            ) from error

    def opened(access: str) -> Any:
        return reading(
            lambda: pyvips.Image.new_from_file(str(path), access=access, fail_on="error")
        )

    picture = opened("sequential")
    is_turned = picture.get_typeof("orientation") and picture.get("orientation") != 1
    if is_turned:
        # Rows of the turned image are columns of the file: libvips keeps it in a temporary file.
        picture = reading(opened("random").autorot)
    bits = BITS.get((picture.format, picture.interpretation))
    if bits is None:
        raise UserError(
            f"{path}: image of {picture.width}x{picture.height} pixels, {picture.interpretation} "
            f"({picture.format}); one that is read row by row is RGB or grey, of 8 or 16 bits: "
            "convert it"
        )
    order = [0, 1, 2] if picture.bands >= 3 else [0, 0, 0]  # without opacity
    order = order if image_format == "RGB" else order[::-1]
    width = picture.width

    def read() -> Rows:
        region = pyvips.Region.new(picture if is_turned else opened("sequential"))
        held, first = np.empty((0, width, 3), np.uint8), 0

        def rows(top: int, bottom: int) -> torch.Tensor:
            nonlocal held, first
            known = first + len(held)
            if bottom > known:
                new = reading(lambda: region.fetch(0, known, width, bottom - known))
                shape = bottom - known, width, picture.bands
                new = np.frombuffer(new, f"u{bits // 8}").reshape(shape)[..., order]
                new = (new >> (bits - 8)).astype(np.uint8, copy=False)
                held = np.concatenate([held[max(top - first, 0) :], new])
                first = bottom - len(held)
            return _tensor(held[top - first : bottom - first])

        return rows

    return read, picture.height, width


class KeptRows(AbstractContextManager):
    """
    Rows of arrays, compressed in a file without a name, to be read once more from the top.

    Args:
        folder: with room for them.
    """

    def __init__(self, folder: Path):
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
        self._count, self._packed = 0, gzip.GzipFile(fileobj=self._file, mode="wb", compresslevel=1)

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, *arrays: np.ndarray) -> None:
        """The next rows of each, [n,W]."""
        for array in arrays:
            np.save(self._packed, array)
        self._count += len(arrays)

    def read(self) -> Iterator[np.ndarray]:
        """Return the arrays in the order in which they were written, which none may follow."""
        self._packed.close()
        self._file.seek(0)
        with gzip.GzipFile(fileobj=self._file) as packed:
            for _ in range(self._count):
                yield np.load(packed)


def _tensor(rows: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(rows).permute(2, 0, 1)


class PngRows(AbstractContextManager):
    """
    Writes a PNG from top to bottom; rows that are missing at the end make it unreadable.

    Args:
        path: of the file.
        height, width: of the image.
        dtype: uint8 or uint16.
        is_grey: False for RGB.
    """

    def __init__(self, path: Path, height: int, width: int, dtype: np.dtype, is_grey: bool = True):
        self._dtype = np.dtype(dtype)
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._file.write(b"\x89PNG\r\n\x1a\n")
        bits = 8 * self._dtype.itemsize
        self._chunk(
            b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 0 if is_grey else 2, 0, 0, 0)
        )
        self._compress = zlib.compressobj(COMPRESSION)

    def write(self, rows: np.ndarray) -> None:
        """
        Args:
            rows: the next ones, of the dtype, [n,W], or [n,W,3] of RGB.
        """
        rows = rows.reshape(len(rows), -1)
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
