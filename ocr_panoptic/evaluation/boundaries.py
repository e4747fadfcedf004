"""Boundary regions of label maps, and how good a prediction is in them.

Distances are those of squares (Chebyshev): pixels (y, x) and (v, u) are max(|y - v|, |x - u|)
apart, as under erosion and dilation by 3 x 3 squares, which the published code uses.

**Boundary IoU** (Cheng et al., "Boundary IoU: Improving Object-Centric Image Segmentation
Evaluation", CVPR 2021, arXiv:2103.16562, section 5; https://github.com/bowenc0221/boundary-iou-api):
IoU of the inner boundary regions of the predicted and of the true mask. That of a mask are its
pixels at most d away from one outside of the mask, where d is 2% of the image's diagonal, rounded,
at least 1, and what lies beyond the image's border counts as outside. Pixels without a true class
are outside of every true mask, and are left out of the predicted regions.

**Trimap** (Kohli et al., "Robust Higher Order Potentials for Enforcing Label Consistency", IJCV
2009; Chen et al., "DeepLab", arXiv:1606.00915, section 4.1): the band of the pixels at most n away
from one with another true label, which is n pixels wide on either side of a boundary. Pixels
without a class make boundaries too, as in PASCAL VOC, where a strip of them runs around each
object, but are not counted; the image's border makes none.

Shape letters: H, W size of the image; K classes.
"""

import math
from collections.abc import Sequence

import numpy as np

from ocr_panoptic.metrics import TRIMAP_WIDTHS

from .confusion import confusion_matrix

DILATION_RATIO = 0.02  # of the diagonal, as published


def boundary_distance(size: Sequence[int]) -> int:
    """d of Boundary IoU, in pixels, for an image of ``size`` (H, W)."""
    return max(1, round(DILATION_RATIO * math.hypot(*size)))


def inner_boundaries(labels: np.ndarray, distance: int) -> np.ndarray:
    """Whether a pixel belongs to the inner boundary region of the mask of its own label.

    Args:
        labels: integers [H, W], classes or ids of segments.
        distance: d, at least 1.

    Returns:
        bool [H, W]: the region of the mask ``labels == l`` is that mask and this one.
    """
    inside = near_other_labels(labels, distance)
    for edge in (inside, inside.T):
        edge[:distance] = edge[-distance:] = True
    return inside


def near_other_labels(labels: np.ndarray, distance: int) -> np.ndarray:
    """Whether a pixel of another label is at most ``distance`` (at least 1) away: bool [H, W].

    Args:
        labels: integers [H, W].
    """
    # A pixel beside a change, at most d - 1 away, has a pixel of another label than ours at most d
    # away: itself or the one beyond the change. And a way of d steps to one passes such a pixel.
    return _dilated(_beside_changes(labels), distance - 1)


def trimap_confusions(
    truth: np.ndarray,
    prediction: np.ndarray,
    num_classes: int,
    ignore_label: int,
    widths: Sequence[int] = TRIMAP_WIDTHS,
) -> np.ndarray:
    """Confusion matrices of the pixels near true boundaries; trimap mIoU is their mIoU.

    Args:
        truth, prediction, num_classes, ignore_label: of :func:`confusion_matrix`, of one size.
        widths: the n of the bands in pixels, ascending.

    Returns:
        int64 [len(widths), K, K], rows = truth, columns = prediction.

    Raises:
        ValueError: as :func:`confusion_matrix`.
    """
    rings = []
    band, reached = _beside_changes(truth), 1
    counted = np.zeros_like(band)
    for width in widths:
        band, reached = _dilated(band, width - reached), width
        ring, counted = band & ~counted, band
        rings.append(confusion_matrix(truth[ring], prediction[ring], num_classes, ignore_label))
    return np.cumsum(rings, axis=0)


def boundary_counts(
    truth: np.ndarray, prediction: np.ndarray, num_classes: int, ignore_label: int
) -> np.ndarray:
    """Pixels of the boundary regions of each class.

    Args:
        truth, prediction, num_classes, ignore_label: of :func:`confusion_matrix`, which checks
            them; here they are trusted.

    Returns:
        int64 [K, 2], intersection and union of the true and the predicted region; Boundary IoU
        of a class over images is the ratio of the sums.
    """
    distance = boundary_distance(truth.shape)
    counted = truth != ignore_label
    true_region = inner_boundaries(truth, distance) & counted
    predicted_region = inner_boundaries(prediction, distance) & counted
    both = true_region & predicted_region & (truth == prediction)

    def pixels(labels: np.ndarray, region: np.ndarray) -> np.ndarray:
        return np.bincount(labels[region], minlength=num_classes)

    intersection = pixels(truth, both)
    union = pixels(truth, true_region) + pixels(prediction, predicted_region) - intersection
    return np.stack([intersection, union], axis=1)


def boundary_errors(
    truth: np.ndarray, prediction: np.ndarray, num_classes: int, ignore_label: int, width: int
) -> np.ndarray:
    """Wrong pixels at most ``width`` pixels from a true and from a predicted boundary, which may be
    one boundary that is displaced.

    Args:
        truth, prediction, num_classes, ignore_label: of :func:`confusion_matrix`, of one size.

    Returns:
        int64 [K, K], rows = truth, columns = prediction; its diagonal is 0.

    Raises:
        ValueError: as :func:`confusion_matrix`.
    """
    near = truth != prediction
    near &= near_other_labels(truth, width)
    near &= near_other_labels(prediction, width)
    return confusion_matrix(truth[near], prediction[near], num_classes, ignore_label)


def _beside_changes(labels: np.ndarray) -> np.ndarray:
    """Whether one of the 8 neighbours has another label: bool [H, W]."""
    beside = np.zeros(labels.shape, dtype=bool)
    for here, there in (
        (np.s_[:, 1:], np.s_[:, :-1]),
        (np.s_[1:], np.s_[:-1]),
        (np.s_[1:, 1:], np.s_[:-1, :-1]),
        (np.s_[1:, :-1], np.s_[:-1, 1:]),
    ):
        changes = labels[here] != labels[there]
        beside[here] |= changes
        beside[there] |= changes
    return beside


def _dilated(mask: np.ndarray, distance: int) -> np.ndarray:
    """The pixels at most ``distance`` away from one of the mask: bool [H, W]."""
    for axis in (0, 1):
        mask = np.moveaxis(_dilated_rows(np.moveaxis(mask, axis, 0), distance), 0, axis)
    return mask


def _dilated_rows(mask: np.ndarray, distance: int) -> np.ndarray:
    """The same along the first axis, in steps that double what was reached."""
    reached = 0
    while reached < distance:
        step = min(reached + 1, distance - reached)  # a longer one would miss at the border
        grown = mask.copy()
        grown[step:] |= mask[:-step]
        grown[:-step] |= mask[step:]
        mask, reached = grown, reached + step
    return mask
