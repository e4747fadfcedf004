"""
Boundary regions of label maps.

Distances are Chebyshev's: pixels (y, x) and (v, u) are max(|y - v|, |x - u|) apart, as in erosion
and dilation by 3 x 3 squares, which the published code uses.

**Boundary IoU** (Cheng et al., "Boundary IoU: Improving Object-Centric Image Segmentation
Evaluation", CVPR 2021, arXiv:2103.16562, section 5;
https://github.com/bowenc0221/boundary-iou-api): IoU of the inner boundary regions of the predicted
and of the true mask. The inner boundary region of a mask is all its pixels at most d away from a
pixel outside the mask. d is 2% of the image's diagonal, rounded, at least 1. The area beyond the
image's border is outside. Pixels without a true class are outside every true mask, and are left out
of the predicted regions.

Shape letters: H, W size of the image.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

DILATION_RATIO = 0.02  # of the image's diagonal, as published


def boundary_distance(size: Sequence[int]) -> int:
    """Return d of Boundary IoU, in pixels, for an image of ``size`` (H, W)."""
    return max(1, round(DILATION_RATIO * math.hypot(*size)))


def near_other_labels(labels: np.ndarray, distances: Iterable[int]) -> dict[int, np.ndarray]:
    """
    Find the pixels within each distance from a pixel with another label.

    Args:
        labels: integers [H, W], classes or ids of segments.
        distances: in pixels, at least 1 each.

    Returns:
        distance -> bool [H, W], in ascending order of the distances
    """
    distances = sorted(set(distances))
    farthest = distances[-1]
    height, width = labels.shape
    # The corners of the pixels, [H + 1, W + 1], at which labels meet. A pixel has other labels at
    # most d away if labels meet at one of the 2d x 2d corners around it.
    meet = np.zeros((height + 2 * farthest - 1, width + 2 * farthest - 1), dtype=bool)
    corners = meet[farthest - 1 : farthest + height, farthest - 1 : farthest + width]
    across, down = labels[:, 1:] != labels[:, :-1], labels[1:] != labels[:-1]
    corners[1:, 1:-1] = across
    corners[:-1, 1:-1] |= across
    corners[1:-1, 1:] |= down
    corners[1:-1, :-1] |= down
    near = {}
    window = 1  # number of corners, in both directions, that an element of ``meet`` covers
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
    Find the pixels in the inner boundary region of the mask of their own label.

    Args:
        near: bool [H, W] from :func:`near_other_labels`, for this distance.
        distance: d, at least 1.

    Returns:
        bool [H, W]; its intersection with the mask ``labels == l`` is the region of that mask
    """
    inside = near.copy()
    for edge in (inside, inside.T):
        edge[:distance] = edge[-distance:] = True
    return inside
