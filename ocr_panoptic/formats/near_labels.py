"""
Recover the labels of two-class masks with inexact pixels, as in JPEG files and smoothed borders.

Shape letters: H, W size of the image; C channels; N different colours of the image; K values that
are expected in the file: first the values of the two classes, then ignored values.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from .pictures import color_codes

CLOSEST = 32  # least distance at which two labels can be distinguished
_LOSSY = 64  # largest distance between a pixel of a JPEG file and its label, except on borders
_FEWEST = 3  # fewer unknown values are not smoothed borders, but forgotten classes


def nearest_of_two(
    image: Image.Image, values: Sequence[Sequence[int]], highest_number: float
) -> np.ndarray | None:
    """
    Return the index of the nearer of two values for each pixel, or None if uncertain.

    In a JPEG file, all pixels can be inexact; in other files, only pixels on borders. The result is
    None if an area is far from both values (it shows another class), or if a pixel is nearest to an
    ignored value.

    Args:
        values: greys (C = 1) or colours (C = 3): the two values, followed by ignored values.
        highest_number: largest pixel value that a class number can have after JPEG compression.

    Returns:
        uint8 [H, W], 0 or 1.
    """
    import cv2

    meant = np.array(values, np.float32)  # [K, C]
    if image.mode.startswith(("I", "F")):
        return None  # more than 8 bits
    if np.linalg.norm(meant[1] - meant[0]) < CLOSEST:
        return None
    is_lossy = image.format == "JPEG"
    pixels = _Pixels(image, meant.shape[1])
    places, distances = _nearest(pixels.colours, meant)
    if (places > 1).any():
        return None
    may_be_numbers = not is_lossy or pixels.colours.max() <= highest_number
    if may_be_numbers and len(places) > 1 and not places.any():
        return None  # e.g. class numbers 0, 1, 2 are all nearest to 0, not to 255
    if is_lossy and meant.shape[1] == 1 and 0 < places.mean() < 1:
        # Accept any two greys: the background of such masks is often dark, but not black.
        meant = np.array([pixels.median(places == place) for place in (0, 1)])
        places, distances = _nearest(pixels.colours, meant)
    if not is_lossy and (distances > 0).sum() < _FEWEST:
        return None
    reach = min(np.linalg.norm(meant[1] - meant[0]) / 4, _LOSSY) if is_lossy else 0
    far = pixels.spread(distances > reach)
    thickest = 4 if is_lossy else 2  # largest thickness of a border in pixels
    square = np.ones((thickest + 1, thickest + 1), np.uint8)
    areas = cv2.erode(far.view(np.uint8), square, borderValue=0)
    if far.mean() > 0.2 or areas.mean() > 0.001:
        return None
    return pixels.spread(places)


def _nearest(colours: np.ndarray, meant: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index in ``meant`` [K, C] nearest to each colour [N, C], and the distances [N]."""
    distances = np.stack([np.linalg.norm(colours - value, axis=1) for value in meant])
    return distances.argmin(0).astype(np.uint8), distances.min(0)


class _Pixels:
    """
    The pixels of an image, stored as runs of equal colours.

    ``colours`` are the different colours of the image, float32 [N, C]; C is 1 for grey, 3 for RGB.
    """

    def __init__(self, image: Image.Image, channels: int):
        self._codes = np.asarray(image.convert("L")) if channels == 1 else color_codes(image)
        flat = self._codes.ravel()
        starts = np.flatnonzero(np.concatenate(([True], flat[1:] != flat[:-1])))
        codes, self._places = np.unique(flat[starts], return_inverse=True)
        self._lengths = np.diff(starts, append=flat.size)
        self._counts = np.bincount(self._places, self._lengths)
        shifts = np.arange(channels, dtype=np.uint32) * 8
        self.colours = (codes.astype(np.uint32)[:, None] >> shifts & 255).astype(np.float32)

    def median(self, chosen: np.ndarray) -> np.ndarray:
        """Return the median, float32 [1], of the pixels whose grey is in ``colours[chosen]``."""
        sums = self._counts[chosen].cumsum()
        return self.colours[chosen][np.searchsorted(sums, sums[-1] / 2)]

    def spread(self, table: np.ndarray) -> np.ndarray:
        """Return an array [H, W] with the value of each pixel's colour in ``table`` [N]."""
        return np.repeat(table[self._places], self._lengths).reshape(self._codes.shape)
