"""Panoptic PNGs: a segment id per pixel, stored in the three bytes of its colour.

The COCO panoptic format [1] stores ``id = R + 256 * G + 256**2 * B``; id 0 (black) is void.

[1] https://cocodataset.org/#format-data, "Panoptic Segmentation"

Shape letters: H, W size of the image.
"""

from __future__ import annotations

import os

import numpy as np
from PIL import Image

MAX_ID = 256**3 - 1


def rgb2id(rgb: np.ndarray) -> np.ndarray:
    """Segment ids of a panoptic PNG's colours.

    Args:
        rgb: uint8 [H, W, 3].

    Returns:
        int32 [H, W].

    Raises:
        ValueError: for another shape or dtype.
    """
    if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8:
        raise ValueError(f"Expected uint8 colours [H, W, 3], found {rgb.dtype} {list(rgb.shape)}.")
    ids = rgb[..., 2].astype(np.int32)
    ids <<= 8
    ids |= rgb[..., 1]
    ids <<= 8
    ids |= rgb[..., 0]
    return ids


def id2rgb(ids: np.ndarray) -> np.ndarray:
    """Colours that store segment ids; the inverse of :func:`rgb2id`.

    Args:
        ids: integers [H, W] in 0..2**24 - 1.

    Returns:
        uint8 [H, W, 3].

    Raises:
        ValueError: for ids outside that range, or that are not integers [H, W].
    """
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"Expected integer ids [H, W], found {ids.dtype} {list(ids.shape)}.")
    if ids.size and (ids.min() < 0 or ids.max() > MAX_ID):
        raise ValueError(
            f"Segment ids must lie in 0..{MAX_ID} to fit a panoptic PNG, "
            f"found {ids.min()}..{ids.max()}."
        )
    return np.stack([ids & 255, (ids >> 8) & 255, (ids >> 16) & 255], axis=-1).astype(np.uint8)


def read_panoptic_png(path: str | os.PathLike) -> np.ndarray:
    """Segment ids of a panoptic PNG.

    Returns:
        int32 [H, W]; 0 is void.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is broken or truncated, or is not an RGB image.
    """
    try:
        with Image.open(path) as image:
            if image.mode != "RGB":
                raise ValueError(
                    f"{os.fspath(path)}: expected an RGB image that stores segment ids "
                    f"(R + 256 G + 256^2 B), found mode {image.mode!r}. "
                    "Is it a label map or a palette image? Write it as a COCO panoptic PNG."
                )
            rgb = np.asarray(image)
    except FileNotFoundError:
        raise FileNotFoundError(f"{os.fspath(path)}: panoptic PNG not found.") from None
    except (OSError, SyntaxError) as error:  # Pillow raises SyntaxError for broken PNG chunks
        raise ValueError(
            f"{os.fspath(path)}: cannot be read as an image ({error}). "
            "The file is broken or truncated; copy or download it again."
        ) from error
    return rgb2id(rgb)


def write_panoptic_png(path: str | os.PathLike, ids: np.ndarray) -> None:
    """Write segment ids (integers [H, W] in 0..2**24 - 1) as a panoptic PNG."""
    Image.fromarray(id2rgb(ids)).save(path, format="PNG")
