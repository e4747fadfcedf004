"""
Label images whose values are only near the intended labels: JPEG files, and smoothed borders.

Shape letters: H, W size of the image, K labels, C channels.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

CLOSEST = 32  # least distance at which two labels can be told apart
# Distances from a label that values may have inside an area: in JPEG files, in files converted from
# JPEG, and in others, where only borders are smoothed.
LOSSY, NOISY, SMOOTHED = 64, 16, 0
# Unknown values beside two labels, and beside more; if there are fewer, they are forgotten classes.
_FEWEST, _FEWEST_OF_MANY = 3, 16
_ROUNDING = 4  # distance by which JPEG shifts a flat area of another label than black and white


def nearest_labels(
    image: Image.Image, values: Sequence[Sequence[int]], noise: float
) -> np.ndarray | None:
    """
    Return the place of the nearest value for each pixel of an image, or None if that is a guess.

    A pixel far from all of several values lies on a border, and takes the place of the nearest
    pixel that is close to a value. An area far from all values belongs to a forgotten class.

    Args:
        image: decoded file.
        values: the intended values, K greys (C 1) or colours (C 3).
        noise: LOSSY, NOISY or SMOOTHED.

    Returns:
        int64 [H, W], 0..K-1.
    """
    import cv2

    meant = np.array(values, np.float64)  # [K, C]
    gaps = np.linalg.norm(meant[:, None] - meant, axis=2)
    if image.mode.startswith(("I", "F")):
        return None  # more than 8 bits
    gap = min(gaps[np.triu_indices(len(meant), 1)], default=0)
    if gap < CLOSEST:
        return None
    pixels = np.asarray(image.convert("L" if meant.shape[1] == 1 else "RGB"), np.uint32)
    shifts = np.arange(meant.shape[1], dtype=np.uint32) * 8
    codes = (pixels.reshape(*pixels.shape[:2], -1) << shifts).sum(2)
    found, inverse = np.unique(codes, return_inverse=True)
    colours = found[:, None] >> shifts & 255
    places, nearest = np.zeros(len(found), np.int64), np.full(len(found), np.inf)
    for place, value in enumerate(meant):  # all distances at once would fill the memory
        distance = np.linalg.norm(colours - value, axis=1)
        places[distance < nearest] = place
        nearest = np.minimum(nearest, distance)
    if len(found) > 1 and not places.any():
        return None  # numbers such as 0, 1, 2
    fewest, rounding = (_FEWEST, 0) if len(meant) == 2 else (_FEWEST_OF_MANY, _ROUNDING)
    if noise != LOSSY and (nearest > 0).sum() < fewest:
        return None
    if noise == NOISY and _has_flat_area(inverse.reshape(codes.shape), nearest > rounding):
        return None
    far = nearest > min(gap / 4, noise)
    places, far = (a[inverse].reshape(codes.shape) for a in (places, far.astype(np.uint8)))
    thickest = 4 if noise == LOSSY else 2  # pixels of a border
    areas = cv2.erode(far, np.ones((thickest + 1, thickest + 1), np.uint8), borderValue=0)
    if far.mean() > 0.2 or areas.mean() > 0.001:
        return None
    if far.any() and len(meant) > 2:  # between two of many, a third may be nearer
        _, owners = cv2.distanceTransformWithLabels(
            far, cv2.DIST_L2, 3, labelType=cv2.DIST_LABEL_PIXEL
        )
        table = np.zeros(owners.max() + 1, np.int64)
        table[owners[far == 0]] = places[far == 0]
        places = table[owners]
    return places


def _has_flat_area(values: np.ndarray, is_foreign: np.ndarray) -> bool:
    """
    Return whether a foreign value has an area of its own, as a forgotten class has.

    Args:
        values: int64 [H, W], places in a list of values.
        is_foreign: bool [number of values], whether each value is not a label.
    """
    import cv2

    counts = np.bincount(values.ravel(), minlength=len(is_foreign))
    square = np.ones((5, 5), np.uint8)
    return any(
        cv2.erode((values == value).astype(np.uint8), square, borderValue=0).any()
        for value in np.flatnonzero(is_foreign & (counts > values.size / 1000))
    )
