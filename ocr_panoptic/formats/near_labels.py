"""
Masks of two labels whose values are only near the labels: JPEG files, and smoothed borders.

Shape letters: H, W size of the image, C channels, N different colours.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from .pictures import color_codes

CLOSEST = 32  # least distance at which two labels can be distinguished
# Largest distance of a value inside an area from its label: in JPEG files, in files converted from
# JPEG, and in files where only borders are smoothed.
LOSSY, NOISY, SMOOTHED = 64, 16, 0
_FEWEST = 3  # fewest unknown values on smoothed borders; fewer are forgotten classes


def nearest_of_two(
    image: Image.Image, values: Sequence[Sequence[int]], noise: float, numbers: float = 0
) -> np.ndarray | None:
    """
    Return the index of the nearer value for each pixel, or None if this would be a guess.

    An area that is far from both values belongs to a class that ``values`` lacks, so that the
    result is None.

    Args:
        values: the two intended values: greys (C = 1) or colours (C = 3).
        noise: LOSSY for a JPEG file, NOISY for a file converted from JPEG, or SMOOTHED for a file
            with smoothed borders.
        numbers: largest pixel value of a JPEG file that may hold class numbers 0, 1, 2, ...

    Returns:
        uint8 [H, W], 0 or 1.
    """
    import cv2

    meant = np.array(values, np.float32)  # [2, C]
    if image.mode.startswith(("I", "F")):
        return None  # more than 8 bits
    if np.linalg.norm(meant[1] - meant[0]) < CLOSEST:
        return None
    pixels = _Pixels(image, meant.shape[1])
    places, distances = _nearer(pixels.colours, meant)
    may_be_numbers = noise != LOSSY or pixels.colours.max() <= numbers
    if may_be_numbers and len(places) > 1 and not places.any():
        return None
    if noise == LOSSY and meant.shape[1] == 1 and 0 < places.mean() < 1:
        # Accept any two greys: the background of such masks is often dark, but not black.
        meant = np.array([pixels.median(places == place) for place in (0, 1)])
        places, distances = _nearer(pixels.colours, meant)
    if noise != LOSSY and (distances > 0).sum() < _FEWEST:
        return None
    if noise == NOISY and pixels.has_flat_area(distances > 0):
        return None
    far = pixels.spread(distances > min(np.linalg.norm(meant[1] - meant[0]) / 4, noise))
    thickest = 4 if noise == LOSSY else 2  # largest thickness of a border in pixels
    areas = cv2.erode(far.view(np.uint8), _square(thickest + 1), borderValue=0)
    if far.mean() > 0.2 or areas.mean() > 0.001:
        return None
    return pixels.spread(places)


def _square(side: int) -> np.ndarray:
    return np.ones((side, side), np.uint8)


def _nearer(colours: np.ndarray, meant: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each colour [N, C], the index of the nearer value [2, C] and its distance."""
    first, second = (np.linalg.norm(colours - value, axis=1) for value in meant)
    return (second < first).view(np.uint8), np.minimum(first, second)


class _Pixels:
    """
    The pixels of an image as runs of equal colours, which are long in a label image.

    Attributes:
        colours: the N different colours, float32 [N, C]; C is 1 for grey, or 3 for RGB.
        counts: number of pixels of each colour, float [N].
    """

    def __init__(self, image: Image.Image, channels: int):
        self._codes = np.asarray(image.convert("L")) if channels == 1 else color_codes(image)
        flat = self._codes.ravel()
        starts = np.flatnonzero(np.concatenate(([True], flat[1:] != flat[:-1])))
        codes, self._places = np.unique(flat[starts], return_inverse=True)
        self._lengths = np.diff(starts, append=flat.size)
        self.counts = np.bincount(self._places, self._lengths)
        shifts = np.arange(channels, dtype=np.uint32) * 8
        self.colours = (codes.astype(np.uint32)[:, None] >> shifts & 255).astype(np.float32)

    def median(self, chosen: np.ndarray) -> np.ndarray:
        """Return the median grey, float32 [1], of the pixels whose grey is ``chosen``, bool [N]."""
        sums = self.counts[chosen].cumsum()
        return self.colours[chosen][np.searchsorted(sums, sums[-1] / 2)]

    def spread(self, table: np.ndarray) -> np.ndarray:
        """Return an array [H, W] that gives each pixel the entry of its colour in ``table`` [N]."""
        return np.repeat(table[self._places], self._lengths).reshape(self._codes.shape)

    def has_flat_area(self, is_foreign: np.ndarray) -> bool:
        """Return whether a foreign colour fills an area, which hints at a forgotten class."""
        import cv2

        may_be_class = self.spread(is_foreign & (self.counts > self._codes.size / 1000))
        if not may_be_class.any():
            return False
        codes = self._codes
        if codes.dtype != np.uint8:
            codes = codes.astype(np.float32)  # OpenCV takes it, and it holds 24 bits exactly
        flat = cv2.erode(codes, _square(5)) == cv2.dilate(codes, _square(5))
        return bool((flat & may_be_class)[2:-2, 2:-2].any())
