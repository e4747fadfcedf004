"""
Boundary regions of label maps.

**Boundary IoU** (Cheng et al., "Boundary IoU: Improving Object-Centric Image Segmentation
Evaluation", CVPR 2021, arXiv:2103.16562, section 5;
https://github.com/bowenc0221/boundary-iou-api) is the IoU of the inner boundary regions of the
predicted mask and the true mask. The inner boundary region of a mask consists of the mask's pixels
that are at most d pixels from a pixel outside the mask. d is 2% of the image's diagonal, rounded,
and at least 1. The area beyond the image's border counts as outside. Pixels without a true class
belong to no true mask, and the predicted regions exclude them.

Distances are Chebyshev distances: pixels (y, x) and (v, u) are max(|y - v|, |x - u|) apart.

Shape letters: H, W size of the image.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

DILATION_RATIO = 0.02  # d / diagonal of the image, as published


def boundary_distance(size: Sequence[int]) -> int:
    """Return the distance d of Boundary IoU, in pixels, for an image of ``size`` (H, W)."""
    return max(1, round(DILATION_RATIO * math.hypot(*size)))


def near_other_labels(labels: np.ndarray, distances: Iterable[int]) -> dict[int, np.ndarray]:
    """
    Find, for each distance, the pixels at most this far from a pixel with another label.

    Args:
        labels: classes or segment ids, integers [H, W].
        distances: distances in pixels, each at least 1.

    Returns:
        mapping from each distance, in ascending order, to bool [H, W], True for the pixels found
    """
    distances = sorted(set(distances))
    farthest = distances[-1]
    height, width = labels.shape
    # ``corners``, [H + 1, W + 1], marks the pixel corners at which different labels meet. A pixel
    # is at most d from another label if one of the 2d x 2d corners around it is marked.
    meet = np.zeros((height + 2 * farthest - 1, width + 2 * farthest - 1), dtype=bool)
    corners = meet[farthest - 1 : farthest + height, farthest - 1 : farthest + width]
    across, down = labels[:, 1:] != labels[:, :-1], labels[1:] != labels[:-1]
    corners[1:, 1:-1] = across
    corners[:-1, 1:-1] |= across
    corners[1:-1, 1:] |= down
    corners[1:-1, :-1] |= down
    near = {}
    window = 1  # side of the square of corners that an element of ``meet`` covers
    for distance in distances:
        while window < 2 * distance:
            step = min(window, 2 * distance - window)
            meet = meet[step:] | meet[:-step]
            meet = meet[:, step:] | meet[:, :-step]
            window += step
        margin = farthest - distance
        near[distance] = meet[margin : margin + height, margin : margin + width]
    return near


def inner_boundaries(near: np.ndarray, distance: int) -> np.ndarray:
    """
    Find the inner boundary regions of the masks of all labels.

    Args:
        near: whether each pixel is at most ``distance`` from another label, bool [H, W].
        distance: distance d in pixels, at least 1.

    Returns:
        whether each pixel is in the inner boundary region of its label's mask, bool [H, W]
    """
    inside = near.copy()
    for edge in (inside, inside.T):
        edge[:distance] = edge[-distance:] = True
    return inside
