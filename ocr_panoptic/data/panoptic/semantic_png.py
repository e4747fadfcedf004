"""Semantic PNGs of Panoptic-FPN: 0 = things, 1..S = stuff, 255 = void.

The rule is that of Detectron2's ``datasets/prepare_panoptic_fpn.py``: every pixel gets the label
of its segment's category, and 255 where no segment lies.

Shape letters: H, W size of the image.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from ocr_panoptic.coco_panoptic import read_panoptic_png
from ocr_panoptic.data.classes import VOID_LABEL
from ocr_panoptic.label_png import write_label_png

from .segments import SegmentRuns


def semantic_labels(
    ids: np.ndarray, segments: Iterable[Mapping], label_of: Mapping[int, int]
) -> np.ndarray:
    """Labels of a panoptic map.

    Args:
        ids: segment ids, integers [H, W].
        segments: ``segments_info``; "id" and "category_id" are read.
        label_of: category id -> label.

    Returns:
        uint8 [H, W].

    Raises:
        KeyError: a category that ``label_of`` lacks.
    """
    return labels_of_runs(SegmentRuns(ids), segments, label_of)


def labels_of_runs(
    runs: SegmentRuns, segments: Iterable[Mapping], label_of: Mapping[int, int]
) -> np.ndarray:
    """:func:`semantic_labels` of a map whose runs are known."""
    label_of_segment = {segment["id"]: label_of[segment["category_id"]] for segment in segments}
    label_of_segment[0] = VOID_LABEL
    return runs.labels(label_of_segment, VOID_LABEL)


def write_semantic_png(
    panoptic_png: Path, segments: Iterable[Mapping], label_of: Mapping[int, int], output: Path
) -> np.ndarray:
    """Write the semantic PNG of one panoptic PNG; returns the panoptic map, int32 [H, W].

    Raises:
        FileNotFoundError, ValueError: as :func:`read_panoptic_png`; ValueError also for a category
            that ``label_of`` lacks.
    """
    ids = read_panoptic_png(panoptic_png)
    try:
        labels = semantic_labels(ids, segments, label_of)
    except KeyError as error:
        raise ValueError(f"{panoptic_png}: category {error} has no semantic label.") from None
    write_label_png(output, labels)
    return ids
