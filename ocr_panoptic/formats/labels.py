"""Semantic labels: PNGs of one channel, whose values are labels; the map from the labels of a data
set's files to those of training; and the true labels of an image, whichever file its record names.

Shape letters: H, W size of the image.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from PIL import Image

from ocr_panoptic.errors import UserError

from .coco_panoptic import read_segment_ids
from .files import printable, replacing
from .pictures import load_labels
from .segment_runs import SegmentRuns

THINGS_LABEL, VOID_LABEL = 0, 255  # of Panoptic-FPN


def read_label_png(path: str | os.PathLike, kind: str = "label PNG") -> np.ndarray:
    """Read the labels of a PNG of 1, 8 or 16 bits; of a palette the indices, not the colours.

    Args:
        kind: what it is, for messages.

    Returns:
        uint8 or uint16 [H, W].
    """
    image = load_labels(path, kind)
    labels = np.asarray(image)
    if labels.ndim != 2:
        raise UserError(
            f"{printable(path)}: expected one channel of labels [H, W], found "
            f"{list(labels.shape)}. Is it a panoptic or a colour PNG?"
        )
    if labels.dtype == bool:
        return labels.astype(np.uint8)
    if image.mode == "I" and image.format == "PNG":  # older Pillow widens 16 bits
        return labels.astype(np.uint16)
    if labels.dtype.kind != "u":
        raise UserError(
            f"{printable(path)}: expected labels of 1, 8 or 16 bits, found {labels.dtype} "
            f"(Pillow's mode {image.mode!r}). Write them as a PNG of one channel."
        )
    return labels


def write_label_png(path: str | os.PathLike, labels: np.ndarray) -> None:
    """Write a label PNG, whole or not at all. Folders are made as needed.

    Args:
        labels: uint8 or uint16 [H, W].
    """
    if labels.ndim != 2 or labels.dtype not in (np.uint8, np.uint16):
        found = f"{labels.dtype} {list(labels.shape)}"
        raise UserError(f"{path}: expected labels uint8 or uint16 [H, W], found {found}")
    with replacing(Path(path)) as temporary:
        Image.fromarray(labels).save(temporary, format="PNG")


def read_labels(path: str | os.PathLike, label_map: Mapping[int, int] | None) -> np.ndarray:
    """Return the training labels of a label PNG, see :func:`apply_label_map`."""
    labels = read_label_png(path)
    try:
        return apply_label_map(labels, label_map)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def apply_label_map(raw: np.ndarray, label_map: Mapping[int, int] | None) -> np.ndarray:
    """Return the training labels of raw ones.

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
    pixels = pixel_counts(raw)
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
    return look_up(table, raw)


def look_up(table: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return ``table[labels]``, of at most 256 bytes for bytes in a quarter of NumPy's time."""
    if not labels.dtype == table.dtype == np.uint8:
        return table[labels]
    whole = [*table.tolist(), *[0] * (256 - len(table))]
    return np.asarray(Image.fromarray(labels).point(whole))


def pixel_counts(labels: np.ndarray) -> np.ndarray:
    """Return how often each value of 0 or more comes in unsigned integers [H, W]; int64 [256] of
    bytes, else as many as the largest value wants."""
    if labels.dtype == np.uint8:  # which Pillow does in a fifth of NumPy's time
        return np.array(Image.fromarray(labels).histogram())
    return np.bincount(labels.reshape(-1))


def _ranges(labels: Iterable[int]) -> str:
    """Return the labels' ranges as text, such as "0..8, 255"."""
    ordered = sorted(labels)
    runs = groupby(enumerate(ordered), lambda entry: entry[1] - entry[0])
    ends = [[label for _, label in run] for _, run in runs]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in ends)


def has_labels(record: Mapping) -> bool:
    """Return whether a record of Detectron2's names a label PNG or a panoptic PNG."""
    return "sem_seg_file_name" in record or "pan_seg_file_name" in record


def read_true_labels(record: Mapping, label_map: Mapping[int, int] | None = None) -> np.ndarray:
    """Return the training labels of an image.

    Args:
        record: with sem_seg_file_name, or with pan_seg_file_name and segments_info.
        label_map: of a label PNG, see :func:`.apply_label_map`.

    Returns:
        uint8 or uint16 [H, W].
    """
    if "sem_seg_file_name" in record:
        return read_labels(record["sem_seg_file_name"], label_map)
    runs = SegmentRuns(read_segment_ids(record))
    return runs.labels(label_of_segments(record["segments_info"]), VOID_LABEL)


def label_of_segments(segments: Sequence[Mapping]) -> dict[int, int]:
    """Return segment id -> semantic label of Panoptic-FPN: 0 for things, 1..S for stuff, 255 for
    void, as Detectron2's ``datasets/prepare_panoptic_fpn.py`` has them.

    Args:
        segments: ``segments_info`` of a record: id, isthing, category_id of 1..S for stuff.
    """
    labels = {s["id"]: THINGS_LABEL if s["isthing"] else s["category_id"] for s in segments}
    return {0: VOID_LABEL, **labels}
