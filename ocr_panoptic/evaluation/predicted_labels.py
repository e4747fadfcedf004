"""The label map in a model's output."""

from collections.abc import Mapping

import numpy as np
import torch

from ocr_panoptic.errors import UserError


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
        # int16 is a quarter of what there is to copy.
        labels = output["labels"].to(torch.int16).cpu().numpy()
        lowest, highest = labels.min(initial=0), labels.max(initial=0)
        found = f"labels {lowest}..{highest}" if lowest < 0 or highest >= num_classes else None
    elif "sem_seg" in output:
        classes = output["sem_seg"].shape[0]
        found = f"scores of {classes} classes" if classes != num_classes else None
    else:
        raise UserError(
            f"{file_name}: the model's output has {sorted(output)}; expected 'labels' [H, W] or "
            "'sem_seg' [K, H, W]."
        )
    if found:
        raise UserError(
            f"{file_name}: the model predicts {found} and the data set has {num_classes} semantic "
            f"classes; set MODEL.SEM_SEG_HEAD.NUM_CLASSES to {num_classes}."
        )
    if "labels" not in output:
        labels = output["sem_seg"].float().cpu().numpy().argmax(axis=0)  # the first of equal ones
    # Narrow integers compare several times faster.
    return labels.astype(np.min_scalar_type(num_classes - 1), copy=False)
