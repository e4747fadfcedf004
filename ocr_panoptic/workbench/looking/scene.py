"""
The ground truth of an image and a model's results for it, which the report shows.

Shape letters: H, W size of the image file; K semantic classes; h, w size of the semantic head's
logits, without padding.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from detectron2.data import Metadata

from ocr_panoptic.errors import UserError
from ocr_panoptic.evaluation.panoptic_truth import TrueSegments
from ocr_panoptic.formats.labels import has_labels, read_true_labels


@dataclass(frozen=True)
class PanopticMap:
    """A panoptic map, true or predicted, with Detectron2's dict for each segment."""

    ids: np.ndarray  # int [H,W]; 0 is void
    info: list[dict[str, Any]]  # with "id", "isthing" and the contiguous "category_id"


class SeenRegions(NamedTuple):
    """
    The soft object regions of an image, and the relation of each pixel to the regions.

    Attributes:
        weights: softmax of each class's logits over the image's pixels, float32 [K,h,w].
        relation: relation of each pixel to the regions, float32 [K,h,w] that sums to 1 over K.
        cells: edges of the cells (positions [h,w]) along both axes, floats [h+1] and [w+1], in
            pixels of the image file, from 0 to H and W.
    """

    weights: np.ndarray
    relation: np.ndarray
    cells: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Inspection:
    """A model's results for one image; a result that the model does not have is None."""

    image: np.ndarray  # uint8 [H,W,3] RGB
    panoptic: PanopticMap | None
    refined: np.ndarray  # labels of the semantic head's output, int [H,W]
    coarse: np.ndarray | None = None  # labels of the coarse logits, int [H,W]
    regions: SeenRegions | None = None


def semantic_truth(record: dict[str, Any], metadata: Metadata) -> np.ndarray:
    """Return a record's true labels, uint8 or uint16 [H,W]; raise UserError if it has none."""
    if not has_labels(record):
        raise UserError(
            f"{record['file_name']} has no labels to show. Set DATASETS.TEST to a data set with "
            "labels"
        )
    return read_true_labels(record, metadata.get("label_map"))


def panoptic_truth(truth: TrueSegments, metadata: Metadata) -> PanopticMap:
    """Return a panoptic map of the true segments, with contiguous category ids."""
    things = metadata.thing_dataset_id_to_contiguous_id
    stuff = metadata.stuff_dataset_id_to_contiguous_id
    info = []
    for segment in truth.segments:
        isthing = segment["category_id"] in things
        category = (things if isthing else stuff)[segment["category_id"]]
        info.append({"id": segment["id"], "isthing": isthing, "category_id": category})
    return PanopticMap(truth.ids, info)
