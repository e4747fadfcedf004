"""PNGs that hold colours and nothing else."""

import contextlib
import os
from typing import BinaryIO

import numpy as np
from PIL import Image


def plain_png_colours(path: str, max_pixels: float) -> np.ndarray | None:
    """The colours of a plain PNG, uint8 RGB [H, W, 3], for which OpenCV takes four fifths of
    Pillow's time; None for any other file, for one with more pixels, and for one with a fault,
    which Pillow names."""
    if not path.lower().endswith(".png") or not os.path.isfile(path):  # a pipe is waited for
        return None
    import cv2

    with contextlib.suppress(Exception):  # Pillow raises what the broken bytes lead to
        with open(path, "rb") as file, Image.open(file, formats=("PNG",)) as image:
            is_read = image.width * image.height <= max_pixels
            # Others are to be turned, or OpenCV might blend or warn of something.
            is_plain = image.tile[0][3] == "RGB" and image.info.keys() <= {"dpi", "srgb"}
            is_plain = is_plain and ends_with_pixels(file)
        if is_read and is_plain:
            return cv2.imread(path)[:, :, ::-1]  # BGR; None of a fault ends here
    return None


def ends_with_pixels(file: BinaryIO) -> bool:
    """Return whether a PNG is whole, and nothing comes after its pixels. Pillow seeks what it reads
    later."""
    file.seek(8)  # after the signature
    kind = b""
    while len(head := file.read(8)) == 8 and head[4:] != b"IEND":
        kind = head[4:]
        file.seek(int.from_bytes(head[:4], "big") + 4, os.SEEK_CUR)  # with the check sum
    return (kind, head[4:]) == (b"IDAT", b"IEND")
