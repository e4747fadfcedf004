"""Label PNGs: one channel, a pixel's value is its label.

Shape letters: H, W size of the image.
"""

import os
from pathlib import Path

import numpy as np
from detectron2.utils.file_io import PathManager
from PIL import Image

from .files import replacing


def read_label_png(path: str | os.PathLike) -> np.ndarray:
    """Labels of a PNG of 1, 8 or 16 bits; where it has a palette, the indices, not the colours.

    Returns:
        non-negative integers [H, W].

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is broken, or has several channels.
    """
    try:
        with PathManager.open(os.fspath(path), "rb") as file, Image.open(file) as image:
            labels = np.asarray(image)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: label PNG not found.") from None
    except (OSError, SyntaxError, ValueError) as error:  # SyntaxError for broken PNG chunks
        raise ValueError(
            f"{path}: cannot be read as an image ({error}). "
            "The file is broken or truncated; copy or download it again."
        ) from error
    if labels.ndim != 2:
        raise ValueError(
            f"{path}: expected one channel of labels [H, W], found {list(labels.shape)}. "
            "Is it a panoptic or a colour PNG?"
        )
    return labels.astype(np.uint8) if labels.dtype == bool else labels


def write_label_png(path: str | os.PathLike, labels: np.ndarray) -> None:
    """Write a label PNG, whole or not at all. Folders are made as needed.

    Args:
        labels: uint8 or uint16 [H, W].

    Raises:
        ValueError: for another shape or dtype.
    """
    if labels.ndim != 2 or labels.dtype not in (np.uint8, np.uint16):
        raise ValueError(
            f"{path}: expected labels uint8 or uint16 [H, W], found {labels.dtype} "
            f"{list(labels.shape)}."
        )
    with replacing(Path(path)) as temporary:
        Image.fromarray(labels).save(temporary, format="PNG")
