"""Label PNGs: one channel, a pixel's value is its label.

Shape letters: H, W size of the image.
"""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from ocr_panoptic.errors import UserError

from .files import printable, replacing
from .pictures import load_labels


def read_label_png(path: str | os.PathLike, kind: str = "label PNG") -> np.ndarray:
    """Labels of a PNG of 1, 8 or 16 bits; where it has a palette, the indices, not the colours.

    Args:
        kind: what it is, for messages.

    Returns:
        uint8 or uint16 [H, W].

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is broken, too large, or has several channels or other numbers.
    """
    image = load_labels(path, kind)
    labels = np.asarray(image)
    if labels.ndim != 2:
        raise UserError(
            f"{printable(path)}: expected one channel of labels [H, W], found "
            f"{list(labels.shape)}. Is it a panoptic or a colour PNG?"
        )
    if labels.dtype == bool:
        return labels.astype(np.uint8)
    if image.mode == "I" and image.format == "PNG":  # older Pillow widens 16 bits
        return labels.astype(np.uint16)
    if labels.dtype.kind != "u":
        raise UserError(
            f"{printable(path)}: expected labels of 1, 8 or 16 bits, found {labels.dtype} "
            f"(Pillow's mode {image.mode!r}). Write them as a PNG of one channel."
        )
    return labels


def write_label_png(path: str | os.PathLike, labels: np.ndarray) -> None:
    """Write a label PNG, whole or not at all. Folders are made as needed.

    Args:
        labels: uint8 or uint16 [H, W].

    Raises:
        ValueError: for another shape or dtype.
    """
    if labels.ndim != 2 or labels.dtype not in (np.uint8, np.uint16):
        raise UserError(
            f"{path}: expected labels uint8 or uint16 [H, W], found {labels.dtype} "
            f"{list(labels.shape)}."
        )
    with replacing(Path(path)) as temporary:
        Image.fromarray(labels).save(temporary, format="PNG")
