"""
Runs of equal pixels.

Neighbouring pixels usually have the same label, so counting runs is several times faster than
counting pixels. Shape letters: H, W size of the image; R runs.
"""

import numpy as np

from ocr_panoptic.errors import UserError


def runs_of(*maps: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """
    Find the maximal runs of pixels, in row-major order, in which every map is constant.

    Args:
        maps: arrays of the same size, [H, W].

    Returns:
        for each map, the value in each run, [R]; the number of pixels of each run, int64 [R]
    """
    flat = [values.reshape(-1) for values in maps]
    size = flat[0].size
    starts = np.ones(size, dtype=bool)
    changes = starts[1:]
    np.not_equal(flat[0][1:], flat[0][:-1], out=changes)
    for values in flat[1:]:
        changes |= values[1:] != values[:-1]
    first = np.flatnonzero(starts)
    return [values.take(first) for values in flat], np.diff(first, append=size)


def check_sizes(truth: np.ndarray, prediction: np.ndarray) -> None:
    if truth.shape != prediction.shape:
        raise UserError(
            f"the prediction has size {list(prediction.shape)} [H, W], but the ground truth has "
            f"{list(truth.shape)}. Resize the prediction to the size of the image"
        )
