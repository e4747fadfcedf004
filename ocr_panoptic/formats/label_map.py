"""Label maps: the labels of a data set's files become those of training."""

import os
from collections.abc import Iterable, Mapping
from itertools import groupby

import numpy as np

from ocr_panoptic.errors import UserError

from .label_png import read_label_png


def read_labels(path: str | os.PathLike, label_map: Mapping[int, int] | None) -> np.ndarray:
    """
    Returns:
        the labels of training of a label PNG, see :func:`apply_label_map`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is broken, or has labels that the map lacks; it is named.
    """
    labels = read_label_png(path)
    try:
        return apply_label_map(labels, label_map)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def apply_label_map(raw: np.ndarray, label_map: Mapping[int, int] | None) -> np.ndarray:
    """
    Args:
        raw: unsigned integers [H, W], labels as the file has them.
        label_map: raw label -> label of training or the ignored one, for every label that files
            may hold; not negative. None = identity.

    Returns:
        unsigned integers [H, W], of the smallest type that holds every label of the map.

    Raises:
        ValueError: labels that the map lacks: which, and on how many pixels.
    """
    if label_map is None:
        return raw
    pixels = np.bincount(raw.reshape(-1))
    foreign = [label for label in np.flatnonzero(pixels) if label not in label_map]
    if foreign:
        found = ", ".join(f"{label} ({pixels[label]} pixels)" for label in foreign)
        raise UserError(
            f"found labels that the data set's label map lacks: {found}; expected "
            f"{_ranges(label_map)}. Is it a file of another kind or release?"
        )
    table = np.zeros(max(len(pixels), 1), dtype=np.min_scalar_type(max(label_map.values())))
    for label in np.flatnonzero(pixels):
        table[label] = label_map[label]
    return table[raw]


def _ranges(labels: Iterable[int]) -> str:
    """Such as "0..8, 255"."""
    ordered = sorted(labels)
    runs = groupby(enumerate(ordered), lambda entry: entry[1] - entry[0])
    ends = [[label for _, label in run] for _, run in runs]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in ends)
