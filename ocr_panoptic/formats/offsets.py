"""
SegFix offsets [1]: steps from pixels near a boundary towards the inside of their region.

A *direction* is one of eight, 45 degrees apart. An *offset label*, the network's target, says
whether a pixel is near a boundary, and in which direction the inside of its region lies. An
*offset* is a step in that direction, or (0, 0) away from boundaries. Refinement replaces a pixel's
prediction with the prediction at the end of the step.

[1] Yuan, Xie, Chen, Wang: SegFix: Model-Agnostic Boundary Refinement for Segmentation, ECCV 2020,
https://arxiv.org/abs/2007.04269; directions are numbered as in openseg.pytorch.

Shape letters: H, W size of the image. ``Array`` stands for NumPy arrays and tensors.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ocr_panoptic.errors import MissingFileError, MissingPackageError, UserError

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", np.ndarray, "torch.Tensor")

# (down, right) of each direction: left, up-left, up, up-right, right, down-right, down, down-left.
# A diagonal step is one row and one column.
DIRECTIONS = np.array(
    [[0, -1], [-1, -1], [-1, 0], [-1, 1], [0, 1], [1, 1], [1, 0], [1, -1]], dtype=np.int8
)
# Pairs of directions that a horizontal flip swaps.
MIRRORED = ((0, 4), (1, 3), (5, 7))
UNDEFINED = len(DIRECTIONS)  # stands for no direction, in the middle of a region
IGNORED = 255  # offset label, boundary or direction that losses and metrics ignore


def offset_labels(near_boundary: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """
    Encode a boundary map and a direction map as offset labels, uint8 [H, W] in 0..17.

    ``near_boundary`` is bool [H, W]; ``direction`` has integers [H, W], 0..7 or UNDEFINED (8).
    """
    return ((UNDEFINED + 1) * near_boundary + direction).astype(np.uint8)


def split_offset_labels(labels: Array) -> tuple[Array, Array]:
    """
    Split offset labels into a boundary map and a direction map, integers [..., H, W].

    The boundary map is 1 near a boundary and 0 elsewhere; directions are 0..7. An IGNORED label
    (255) gives IGNORED in both maps; an undefined direction becomes IGNORED.
    """
    near_boundary, direction = labels // (UNDEFINED + 1), labels % (UNDEFINED + 1)
    ignored = labels == IGNORED
    near_boundary[ignored] = IGNORED
    direction[ignored | (direction == UNDEFINED)] = IGNORED
    return near_boundary, direction


def offsets_of(near_boundary: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """
    Convert a boundary map and a direction map to offsets (down, right), int8 [H, W, 2].

    ``near_boundary`` is bool [H, W]; ``direction`` has integers [H, W]. The offset is (0, 0) away
    from boundaries, and for directions above 7.
    """
    steps = np.concatenate([DIRECTIONS, np.zeros((1, 2), np.int8)])
    return steps[np.where(near_boundary & (direction < UNDEFINED), direction, UNDEFINED)]


def source_pixels(offsets: np.ndarray, scale: int) -> np.ndarray:
    """
    Return the index of each pixel's source in the flattened image, int64 [H, W].

    The source is the pixel's position plus ``scale`` times its offset (down, right) in ``offsets``
    [H, W, 2], clipped to the image.
    """
    height, width = offsets.shape[:2]
    steps = scale * offsets.astype(np.int64)
    rows = np.clip(np.arange(height)[:, None] + steps[..., 0], 0, height - 1)
    return rows * width + np.clip(np.arange(width) + steps[..., 1], 0, width - 1)


def moved(values: Array, sources: Array) -> Array:
    """
    Return values [..., H, W] in which each pixel has the value of its source pixel.

    ``sources`` are indices [H, W] from :func:`source_pixels`. Both arguments must be NumPy arrays,
    or both tensors.
    """
    if tuple(values.shape[-2:]) != tuple(sources.shape):
        (height, width), (rows, columns) = values.shape[-2:], sources.shape
        raise UserError(
            f"the prediction has {width}x{height} pixels, but the offsets have {columns}x{rows} "
            "(width x height); expected equal sizes"
        )
    # The number of pixels, not -1: for an empty list of masks, -1 would be ambiguous.
    return values.reshape(*values.shape[:-2], sources.shape[0] * sources.shape[1])[..., sources]


def read_offsets(path: str | os.PathLike) -> np.ndarray:
    """Read offsets (down, right), int8 [H, W, 2], from a MATLAB file of openseg.pytorch."""
    offsets = read_variable(Path(path), "mat")
    whole = offsets.ndim == 3 and offsets.shape[2] == 2 and offsets.dtype.kind in "iuf"
    if not whole or not np.array_equal(small := offsets.astype(np.int8), offsets):
        raise UserError(
            f"{path}: expected offsets [H, W, 2] in whole pixels, found {offsets.dtype} "
            f"{list(offsets.shape)}. Is it a label file?"
        )
    return small


def read_variable(path: Path, name: str) -> np.ndarray:
    """Return a variable of a MATLAB file, read with SciPy."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise MissingPackageError(
            "Reading MATLAB files needs the optional package SciPy: pip install scipy"
        ) from None
    if not path.is_file():
        raise MissingFileError(f"{path}: file not found.")
    try:
        content = loadmat(path)
    except Exception as error:  # SciPy raises various errors for broken bytes
        raise UserError(f"{path}: broken, or not a MATLAB file ({error}).") from error
    if name not in content:
        variables = ", ".join(sorted(key for key in content if not key.startswith("__")))
        raise UserError(f"{path}: expected the variable {name!r}, found {variables or 'none'}.")
    return content[name]
