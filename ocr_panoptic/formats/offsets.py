"""
Offsets: the step from a pixel near a boundary into the region that it belongs to (SegFix [1]).

A *direction* is one of eight, 45 degrees apart. An *offset label* tells whether a pixel lies near a
boundary, and in which direction its region lies: the target of a network. An *offset* is the step
itself, (0, 0) away from boundaries; moving a prediction by offsets is the refinement.

[1] Yuan, Xie, Chen, Wang: SegFix: Model-Agnostic Boundary Refinement for Segmentation, ECCV 2020,
https://arxiv.org/abs/2007.04269; numbering and steps equal openseg.pytorch.

Shape letters: H, W size of the image. ``Array`` stands for NumPy arrays and tensors.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ocr_panoptic.errors import UserError

from .matlab import read_variable

if TYPE_CHECKING:
    import torch

Array = TypeVar("Array", np.ndarray, "torch.Tensor")

# (down, right) of each direction: left, up-left, up, up-right, right, down-right, down, down-left.
# A diagonal step is one row and one column.
DIRECTIONS = np.array(
    [[0, -1], [-1, -1], [-1, 0], [-1, 1], [0, 1], [1, 1], [1, 0], [1, -1]], dtype=np.int8
)
# Directions that change places in an image mirrored left to right.
MIRRORED = ((0, 4), (1, 3), (5, 7))
UNDEFINED = len(DIRECTIONS)  # the direction in the middle of a region, where it has none
IGNORED = 255  # offset label (and both its parts) of a pixel that no loss or metric counts


def offset_labels(near_boundary: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """
    Return offset labels, uint8 [H, W] in 0..17.

    Args:
        near_boundary: bool [H, W]
        direction: integers [H, W], 0..7 or UNDEFINED
    """
    return ((UNDEFINED + 1) * near_boundary + direction).astype(np.uint8)


def split_offset_labels(labels: Array) -> tuple[Array, Array]:
    """
    Return the two parts of offset labels, integers [..., H, W].

    The first is 1 near a boundary and 0 elsewhere; the second is the direction, 0..7. Both are
    IGNORED at ignored labels, and an undefined direction is IGNORED, too.
    """
    near_boundary, direction = labels // (UNDEFINED + 1), labels % (UNDEFINED + 1)
    ignored = labels == IGNORED
    near_boundary[ignored] = IGNORED
    direction[ignored | (direction == UNDEFINED)] = IGNORED
    return near_boundary, direction


def offsets_of(near_boundary: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """
    Return offsets (down, right) in pixels, int8 [H, W, 2].

    Args:
        near_boundary: bool [H, W]
        direction: integers [H, W]; values outside 0..7 have no offset
    """
    steps = np.concatenate([DIRECTIONS, np.zeros((1, 2), np.int8)])
    return steps[np.where(near_boundary & (direction < UNDEFINED), direction, UNDEFINED)]


def source_pixels(offsets: np.ndarray, scale: int) -> np.ndarray:
    """
    Return the pixel that each pixel copies: ``scale`` times its offset away, within the image.

    Args:
        offsets: integers [H, W, 2], (down, right)

    Returns:
        int64 [H, W], index into the image's pixels, row after row
    """
    height, width = offsets.shape[:2]
    steps = scale * offsets.astype(np.int64)
    rows = np.clip(np.arange(height)[:, None] + steps[..., 0], 0, height - 1)
    return rows * width + np.clip(np.arange(width) + steps[..., 1], 0, width - 1)


def moved(values: Array, sources: Array) -> Array:
    """
    Return refined values [..., H, W]: each pixel takes the value of its source.

    Args:
        values: [..., H, W] of any type
        sources: result of :func:`source_pixels`, of the same library as the values
    """
    if tuple(values.shape[-2:]) != tuple(sources.shape):
        (height, width), (rows, columns) = values.shape[-2:], sources.shape
        raise UserError(
            f"the prediction has {width}x{height} pixels, the offsets {columns}x{rows} "
            "(width x height)"
        )
    # The number of pixels, not -1: for an empty list of masks, -1 would be ambiguous.
    return values.reshape(*values.shape[:-2], sources.shape[0] * sources.shape[1])[..., sources]


def read_offsets(path: str | os.PathLike) -> np.ndarray:
    """Read an offset file of openseg.pytorch (MATLAB), int8 [H, W, 2], (down, right)."""
    offsets = read_variable(Path(path), "mat")
    whole = offsets.ndim == 3 and offsets.shape[2] == 2 and offsets.dtype.kind in "iuf"
    if not whole or not np.array_equal(small := offsets.astype(np.int8), offsets):
        raise UserError(
            f"{path}: expected offsets [H, W, 2], whole numbers of pixels, found {offsets.dtype} "
            f"{list(offsets.shape)}. Is it a file of labels?"
        )
    return small
