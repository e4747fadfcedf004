"""Images that are equal or nearly so, within a data set and between two.

An image is compared as a picture of 16x16 colours, the means over its parts: another size, another
compression or a little noise change it by about a level of 255, another scene by dozens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

SIDE = 16  # of the picture
NEAR = 4.0  # levels of 255, root of the mean square over the picture: below this images are near
ROWS = 1024  # compared at once


class NearPair(NamedTuple):
    """
    Attributes:
        first, second: places in the two lists.
        distance: levels of 255.
    """

    first: int
    second: int
    distance: float


def small_picture(image: np.ndarray) -> np.ndarray:
    """Shrink an image, uint8 [H, W, 3], to uint8 [SIDE, SIDE, 3]."""
    return np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BOX))


def near_pairs(
    pictures: Sequence[np.ndarray], others: Sequence[np.ndarray] | None = None
) -> list[NearPair]:
    """Find for each small picture the nearest of the others, if it is nearer than NEAR; the nearest
    pair first. No more pairs than pictures, though all may be equal.

    Args:
        others: a second list; by default those before the picture in its own list, and the earlier
            one is the first of a pair.
    """
    if not len(pictures) or (others is not None and not len(others)):
        return []
    first = _flat(pictures)
    second = first if others is None else _flat(others)
    squares = np.einsum("ij,ij->i", second, second)
    found = []
    for start in range(0, len(first), ROWS):
        rows = first[start : start + ROWS]
        distances = squares - 2 * rows @ second.T  # |a - b|^2, but for |a|^2
        if others is None:
            place = np.arange(len(rows))[:, None] + start
            distances[np.arange(len(second)) >= place] = np.inf
        for row, nearest in enumerate(distances.argmin(axis=1).tolist()):
            difference = rows[row] - second[nearest]
            distance = float(np.sqrt(np.mean(difference**2, dtype=np.float64)))
            if others is not None and distance < NEAR:
                found.append(NearPair(start + row, nearest, distance))
            elif nearest < start + row and distance < NEAR:
                found.append(NearPair(nearest, start + row, distance))
    return sorted(found, key=lambda pair: (pair.distance, pair.first, pair.second))


def _flat(pictures: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack(pictures).reshape(len(pictures), -1).astype(np.float32) - 128
