"""Images as arrays of any number of channels and any type: NumPy's files, and TIFF.

TIFF is libvips's work (pyvips): it reads bands of any number, of integers and float32, in planes,
strips and tiles, with LZW, Deflate and most other compressions; not Zstandard, LERC and float64.

Shape letters: H, W size of the image, C channels.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ocr_panoptic.errors import UserError

NUMPY_SUFFIX = ".npy"
TIFF_SUFFIXES = (".tif", ".tiff")


class ArrayFile(NamedTuple):
    """
    Attributes:
        height, width: as the file has them.
        orientation: of EXIF, 1 for none; ``read`` does not turn.
        channels: what the file has, by its header.
        read: the whole array, [H, W, C].
    """

    height: int
    width: int
    orientation: int
    channels: int
    read: Callable[[], np.ndarray]


def open_array(path: str | os.PathLike) -> ArrayFile | None:
    """
    A file by its header; None where its name ends in neither .npy nor .tif(f).

    Raises:
        ValueError: it is broken, or its values are no plain numbers, or pyvips is wanted and not
            there; the reason only, without the name.
    """
    suffix = Path(path).suffix.lower()
    if suffix == NUMPY_SUFFIX:
        return _open_numpy(path)
    if suffix in TIFF_SUFFIXES:
        return _open_tiff(path)
    return None


def _open_numpy(path: str | os.PathLike) -> ArrayFile:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy raises what the broken bytes lead to
        raise UserError(f"is no NumPy array of plain numbers, or broken ({error})") from error
    is_image = isinstance(array, np.ndarray) and array.ndim in (2, 3) and array.size
    if not is_image or array.dtype.kind not in "uif":
        kind, shape = getattr(array, "dtype", "no array"), list(getattr(array, "shape", ()))
        raise UserError(f"holds {kind} {shape}; expected numbers [H, W] or [H, W, C]")
    array = array if array.ndim == 3 else array[:, :, None]
    return ArrayFile(*array.shape[:2], 1, array.shape[2], lambda: np.array(array))


def _open_tiff(path: str | os.PathLike) -> ArrayFile:
    try:
        import pyvips
    except ImportError as error:
        raise UserError(
            "is a TIFF file with bands, which pyvips reads: pip install 'pyvips[binary]'"
        ) from error

    def opened(**options: object) -> Any:
        return pyvips.Image.tiffload(str(path), fail_on="error", **options)

    try:
        image = opened()
        pages = image.get("n-pages") if image.get_typeof("n-pages") else 1
        height, channels = image.height, image.bands
        if channels == 1 and pages > 1:  # a page for each, or smaller copies of the first
            with contextlib.suppress(pyvips.Error):
                image, channels = opened(n=-1), pages
        if image.interpretation in ("cmyk", "lab", "labs", "labq") or "complex" in image.format:
            raise UserError(f"holds {image.interpretation} ({image.format}); convert it")
    except pyvips.Error as error:
        raise _broken(error) from error

    def read() -> np.ndarray:
        try:
            array = image.numpy()
        except pyvips.Error as error:
            raise _broken(error) from error
        if image.height != height:
            return array.reshape(channels, height, image.width).transpose(1, 2, 0)
        return array if array.ndim == 3 else array[:, :, None]

    orientation = image.get("orientation") if image.get_typeof("orientation") else 1
    return ArrayFile(height, image.width, orientation, channels, read)


def _broken(error: Exception) -> ValueError:
    lines = dict.fromkeys(line.strip() for line in str(error).splitlines())
    reason = " ".join(filter(None, lines))
    return UserError(f"is broken, or of a kind that libvips does not read ({reason})")
