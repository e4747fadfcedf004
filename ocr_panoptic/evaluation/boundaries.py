"""Boundary regions of label maps, and how good a prediction is in them.

Distances are those of squares (Chebyshev): pixels (y, x) and (v, u) are max(|y - v|, |x - u|)
apart, as under erosion and dilation by 3 x 3 squares, which the published code uses.

**Boundary IoU** (Cheng et al., "Boundary IoU: Improving Object-Centric Image Segmentation
Evaluation", CVPR 2021, arXiv:2103.16562, section 5; https://github.com/bowenc0221/boundary-iou-api):
IoU of the inner boundary regions of the predicted and of the true mask. That of a mask are its
pixels at most d away from one outside of the mask, where d is 2% of the image's diagonal, rounded,
at least 1, and what lies beyond the image's border counts as outside. Pixels without a true class
are outside of every true mask, and are left out of the predicted regions.

Counts are of runs of pixels (:mod:`.runs`), or of pixels where each run is one.

Shape letters: H, W size of the image; R runs; K classes.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

DILATION_RATIO = 0.02  # of the diagonal, as published


def boundary_distance(size: Sequence[int]) -> int:
    """d of Boundary IoU, in pixels, for an image of ``size`` (H, W)."""
    return max(1, round(DILATION_RATIO * math.hypot(*size)))


def near_other_labels(labels: np.ndarray, distances: Iterable[int]) -> dict[int, np.ndarray]:
    """Return whether a pixel of another label is at most so far away.

    Args:
        labels: integers [H, W], classes or ids of segments.
        distances: at least 1 each.

    Returns:
        of each distance, in ascending order, bool [H, W].
    """
    distances = sorted(set(distances))
    farthest = distances[-1]
    height, width = labels.shape
    # The corners of the pixels, [H + 1, W + 1], at which labels meet. A pixel has others at most d
    # away where one of the 2d x 2d corners around it is such: if none is, all labels there are one.
    meet = np.zeros((height + 2 * farthest - 1, width + 2 * farthest - 1), dtype=bool)
    corners = meet[farthest - 1 : farthest + height, farthest - 1 : farthest + width]
    across, down = labels[:, 1:] != labels[:, :-1], labels[1:] != labels[:-1]
    corners[1:, 1:-1] = across
    corners[:-1, 1:-1] |= across
    corners[1:-1, 1:] |= down
    corners[1:-1, :-1] |= down
    near = {}
    window = 1  # each element of ``meet`` stands for so many corners in both directions
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
    """Return whether a pixel belongs to the inner boundary region of the mask of its own label.

    Args:
        near: bool [H, W], :func:`near_other_labels` of this distance.
        distance: d, at least 1.

    Returns:
        bool [H, W]: the region of the mask ``labels == l`` is that mask and this one.
    """
    inside = near.copy()
    for edge in (inside, inside.T):
        edge[:distance] = edge[-distance:] = True
    return inside


def boundary_counts(
    truth: np.ndarray,
    prediction: np.ndarray,
    true_region: np.ndarray,
    predicted_region: np.ndarray,
    pixels: np.ndarray,
    num_classes: int,
) -> np.ndarray:
    """Pixels of the boundary regions of each class.

    Args:
        truth, prediction: integers [R], labels of runs, which :func:`confusion_matrix` checks; here
            they are trusted.
        true_region, predicted_region: bool [R], :func:`inner_boundaries`.
        pixels: integers [R], of each run, 0 where the truth has no class.
        num_classes: K.

    Returns:
        int64 [K, 2], intersection and union of the true and the predicted region; Boundary IoU
        of a class over images is the ratio of the sums.
    """

    def count(labels: np.ndarray, region: np.ndarray) -> np.ndarray:
        found = np.bincount(labels, weights=pixels * region, minlength=num_classes)
        return found[:num_classes]

    intersection = count(truth, true_region & predicted_region & (truth == prediction))
    union = count(truth, true_region) + count(prediction, predicted_region) - intersection
    return np.stack([intersection, union], axis=1).astype(np.int64)
