"""The true semantic labels of an image, from whichever file its record names.

Shape letters: H, W size of the image.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from .coco_panoptic import read_panoptic_png
from .label_map import read_labels
from .segment_runs import SegmentRuns

THINGS_LABEL, VOID_LABEL = 0, 255  # of Panoptic-FPN


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

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is broken, or has labels that the map lacks; it is named.
    """
    if "sem_seg_file_name" in record:
        return read_labels(record["sem_seg_file_name"], label_map)
    runs = SegmentRuns(read_panoptic_png(record["pan_seg_file_name"]))
    return runs.labels(label_of_segments(record["segments_info"]), VOID_LABEL)


def label_of_segments(segments: Sequence[Mapping]) -> dict[int, int]:
    """Segment id -> semantic label of Panoptic-FPN: 0 for things, 1..S for stuff, 255 for void, as
    Detectron2's ``datasets/prepare_panoptic_fpn.py`` has them.

    Args:
        segments: ``segments_info`` of a record: id, isthing, category_id of 1..S for stuff.
    """
    labels = {s["id"]: THINGS_LABEL if s["isthing"] else s["category_id"] for s in segments}
    return {0: VOID_LABEL, **labels}
