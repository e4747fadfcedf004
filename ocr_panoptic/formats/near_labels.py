"""
Label images whose values are only near the intended labels: JPEG files, and smoothed borders.

Shape letters: H, W size of the image, K labels, C channels.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, combinations

import numpy as np
from PIL import Image

from .pictures import color_codes

CLOSEST = 32  # least distance at which two labels can be distinguished
# Largest distance of a value inside an area from its label: in JPEG files, in files converted from
# JPEG, and in files where only borders are smoothed.
LOSSY, NOISY, SMOOTHED = 64, 16, 0
# Fewest unknown values on smoothed borders (two labels, more labels); fewer are forgotten classes.
_FEWEST, _FEWEST_OF_MANY = 3, 16
ROUNDING = 4  # how far JPEG may shift the values of a flat area, except for black and white


def nearest_labels(
    image: Image.Image, values: Sequence[Sequence[int]], noise: float, numbers: float = 0
) -> np.ndarray | None:
    """
    Return the index of the nearest value for each pixel, or None if this would be a guess.

    If there are more than two values, a border pixel that is far from every value gets the index of
    the closest pixel near a value. An area that is far from all values belongs to a class that
    ``values`` lacks, so that the result is None.

    Args:
        values: the K intended values: greys (C = 1) or colours (C = 3).
        noise: LOSSY for a JPEG file, NOISY for a file converted from JPEG, or SMOOTHED for a file
            with smoothed borders.
        numbers: largest pixel value of a JPEG file that may hold class numbers 0, 1, 2, ...

    Returns:
        unsigned integers [H, W], 0..K-1.
    """
    import cv2

    meant = np.array(values, np.float32)  # [K, C]
    gaps = np.linalg.norm(meant[:, None] - meant, axis=2)
    if image.mode.startswith(("I", "F")):
        return None  # more than 8 bits
    gap = min(gaps[np.triu_indices(len(meant), 1)], default=0)
    if gap < CLOSEST:
        return None
    pixels = _Pixels(image, meant.shape[1])
    places, distances = _nearest(pixels.colours, meant)
    may_be_numbers = noise != LOSSY or pixels.colours.max() <= numbers
    if may_be_numbers and len(places) > 1 and not places.any():
        return None
    if noise == LOSSY and meant.shape == (2, 1) and 0 < places.mean() < 1:
        # Accept any two greys: the background of such masks is often dark, but not black.
        meant = np.array([pixels.median(places == place) for place in (0, 1)])
        gap = float(meant[1, 0] - meant[0, 0])
        places, distances = _nearest(pixels.colours, meant)
    fewest, rounding = (_FEWEST, 0) if len(meant) == 2 else (_FEWEST_OF_MANY, ROUNDING)
    if noise != LOSSY and (distances > 0).sum() < fewest:
        return None
    if noise == NOISY and pixels.has_flat_area(distances > rounding):
        return None
    reach = min(gap / 4, noise)
    is_far = distances > reach
    nearest, far = map(pixels.spread, (places, is_far))
    thickest = 4 if noise == LOSSY else 2  # largest thickness of a border in pixels
    areas = cv2.erode(far.view(np.uint8), _square(thickest + 1), borderValue=0)
    if far.mean() > 0.2 or areas.mean() > 0.001:
        return None
    if len(meant) > 2:  # on a border between two of many, a third value may be nearer
        sides = _between(meant, np.unique(places[~is_far]).tolist(), reach + ROUNDING)
        border = far | _thirds(np.where(far, len(meant), nearest), sides)
        if border.any():
            _fill(nearest, border)
    return nearest


def _square(side: int) -> np.ndarray:
    return np.ones((side, side), np.uint8)


def _between(
    meant: np.ndarray, shown: Sequence[int], reach: float
) -> dict[int, list[tuple[int, int]]]:
    """
    Find the values that lie between two other values.

    Args:
        meant: values, float32 [K, C].
        shown: indices of the values to compare.
        reach: largest distance of a value from the line between two others.

    Returns:
        index of a value between others -> pairs of indices of the values that enclose it
    """
    thirds = defaultdict(list)
    for one, other in combinations(shown, 2):
        line = meant[other] - meant[one]
        shares = (meant - meant[one]) @ line / (line @ line)
        nearest = meant[one] + shares.clip(0, 1)[:, None] * line
        distances = np.linalg.norm(meant - nearest, axis=1)
        for third in shown:
            if third not in (one, other) and distances[third] <= reach:
                thirds[third].append((one, other))
    return thirds


def _thirds(places: np.ndarray, sides: Mapping[int, Sequence[tuple[int, int]]]) -> np.ndarray:
    """
    Find border pixels whose value lies between the values on the border's two sides, bool [H, W].

    Args:
        places: index of the value nearest to each pixel, unsigned integers [H, W]; K for pixels
            that are far from all values.
        sides: index of a value between others -> pairs of indices of the values that enclose it.
    """
    import cv2

    thickest = 2
    found = np.zeros(places.shape, bool)
    shown = {*chain(*chain(*sides.values()))}
    near = {
        place: cv2.dilate((places == place).view(np.uint8), _square(2 * thickest + 1)).ravel()
        for place in shown
    }
    for third, pairs in sides.items():
        mask = (places == third).view(np.uint8)
        thin = np.flatnonzero(mask > cv2.morphologyEx(mask, cv2.MORPH_OPEN, _square(thickest + 1)))
        for one, other in pairs:
            found.ravel()[thin] |= (near[one][thin] & near[other][thin]).view(bool)
    return found


def _nearest(colours: np.ndarray, meant: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each colour [N, C], the index of the nearest value [K, C] and its distance."""
    places = np.empty(len(colours), np.uint8 if len(meant) <= 256 else np.uint16)
    norms = (meant**2).sum(1)
    for first in range(0, len(colours), 4096):  # all distances at once would fill the memory
        some = slice(first, first + 4096)
        places[some] = (norms - 2 * colours[some] @ meant.T).argmin(1)
    return places, np.linalg.norm(colours - meant[places], axis=1)


def _fill(places: np.ndarray, unknown: np.ndarray) -> None:
    """Set each unknown pixel of ``places`` [H, W] to the index at the nearest known pixel."""
    import cv2

    mask = unknown.view(np.uint8)
    _, owners = cv2.distanceTransformWithLabels(
        mask, cv2.DIST_L2, 3, labelType=cv2.DIST_LABEL_PIXEL
    )
    rim, inside = np.flatnonzero(cv2.dilate(mask, _square(3)) > mask), np.flatnonzero(mask)
    table = np.empty(owners.max() + 1, places.dtype)
    table[owners.ravel()[rim]] = places.ravel()[rim]
    places.ravel()[inside] = table[owners.ravel()[inside]]


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
