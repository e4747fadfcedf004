"""The label map in a model's output."""

from collections.abc import Mapping

import numpy as np
import torch


def labels_of_output(output: Mapping, num_classes: int, file_name: str) -> np.ndarray:
    """The labels that a model predicts for an image.

    Args:
        output: mapping with "labels", integers [H, W], or "sem_seg", scores [K, H, W].
        num_classes: K of the data set.
        file_name: the image, for messages.

    Returns:
        integers [H, W], 0..K-1.

    Raises:
        ValueError: neither key is there, or the model has other classes than the data set.
    """
    if "labels" in output:
        labels = output["labels"].cpu().numpy()
        lowest, highest = labels.min(initial=0), labels.max(initial=0)
        found = f"labels {lowest}..{highest}" if lowest < 0 or highest >= num_classes else None
    elif "sem_seg" in output:
        classes = output["sem_seg"].shape[0]
        found = f"scores of {classes} classes" if classes != num_classes else None
    else:
        raise ValueError(
            f"{file_name}: the model's output has {sorted(output)}; expected 'labels' [H, W] or "
            "'sem_seg' [K, H, W]."
        )
    if found:
        raise ValueError(
            f"{file_name}: the model predicts {found} and the data set has {num_classes} semantic "
            f"classes; set MODEL.SEM_SEG_HEAD.NUM_CLASSES to {num_classes}."
        )
    if "labels" in output:  # narrow integers compare several times faster
        return labels.astype(np.min_scalar_type(num_classes - 1), copy=False)
    return predicted_labels(output["sem_seg"])


def predicted_labels(scores: torch.Tensor) -> np.ndarray:
    """Class of the highest score per pixel, the first of equal ones.

    Args:
        scores: [K, H, W].

    Returns:
        integers [H, W].
    """
    if scores.device.type != "cpu":
        return scores.argmax(dim=0).cpu().numpy()
    # A running maximum over the classes, in bands of rows that stay in the cache: on a CPU it
    # takes a fraction of the time of torch's argmax over the first axis.
    scores = scores.float().numpy()
    dtype = np.min_scalar_type(len(scores) - 1)
    labels = np.zeros(scores.shape[1:], dtype=dtype)
    rows_of_band = max(1, 2**15 // max(1, scores.shape[2]))
    for top in range(0, scores.shape[1], rows_of_band):
        band = scores[:, top : top + rows_of_band]
        label = labels[top : top + rows_of_band]
        highest = band[0].copy()
        higher = np.empty(highest.shape, dtype=bool)
        for k in range(1, len(band)):
            np.greater(band[k], highest, out=higher)
            np.maximum(highest, band[k], out=highest)
            # Classes come in rising order, so the maximum keeps the one that was higher last.
            np.maximum(label, np.multiply(higher, k, dtype=dtype), out=label)
    return labels
