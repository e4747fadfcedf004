"""What the pictures of one image are made of: its truth, and what a model sees in it.

Shape letters: H, W size of the image file; K semantic classes; h, w size of the semantic head's
logits, without padding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from detectron2.data import Metadata

from ocr_panoptic.errors import UserError
from ocr_panoptic.formats.coco_panoptic import TrueSegments
from ocr_panoptic.formats.labels import has_labels, read_true_labels


@dataclass(frozen=True)
class PanopticMap:
    """
    A panoptic map.

    Attributes:
        ids: int [H,W]; 0 is void.
        info: a dict for each segment, as Detectron2's models give it: "id", "isthing" and the
            contiguous "category_id" (of stuff an index among ``stuff_classes``, where 0 stands for
            all things).
    """

    ids: np.ndarray
    info: list[dict[str, Any]]

    def sem_seg(self, void: int) -> np.ndarray:
        """Return the semantic labels of Panoptic-FPN, int [H,W]: 0 for things, then the stuff
        classes; ``void`` where there is no segment."""
        labels = np.full(self.ids.shape, void)
        for segment in self.info:
            label = 0 if segment["isthing"] else segment["category_id"]
            labels[self.ids == segment["id"]] = label
        return labels


@dataclass(frozen=True)
class Inspection:
    """
    What a model sees in one image. Regions, relation and cells are None for a head without them.

    Attributes:
        image: uint8 [H,W,3] RGB.
        panoptic: the prediction; None for a semantic model.
        refined: int [H,W], the labels of the semantic head's output.
        coarse: int [H,W], the labels of its coarse logits; None for Detectron2's head.
        regions: float32 [K,h,w], the soft object regions: the logits of each class after a softmax
            over the image's pixels, each map of sum 1.
        relation: float32 [K,h,w], the relation of each pixel to the regions, of sum 1 over K.
        cells: floats [h+1] and [w+1], the edges of the cells of regions and relation, in pixels of
            the image file from 0 to H and W.
        attention: scale -> float32 map in (0, 1) over the image, where hierarchical multi-scale
            attention trusts the prediction at this scale more than those of larger ones.
    """

    image: np.ndarray
    panoptic: PanopticMap | None
    refined: np.ndarray
    coarse: np.ndarray | None = None
    regions: np.ndarray | None = None
    relation: np.ndarray | None = None
    cells: tuple[np.ndarray, np.ndarray] | None = None
    attention: Mapping[float, np.ndarray] = field(default_factory=dict)


def semantic_truth(record: dict[str, Any], metadata: Metadata) -> np.ndarray:
    """Return the true labels of a record, uint8 or uint16 [H,W]."""
    if not has_labels(record):
        raise UserError(
            f"{record['file_name']} has no labels to show; name a data set with labels in "
            "DATASETS.TEST"
        )
    return read_true_labels(record, metadata.get("label_map"))


def panoptic_truth(truth: TrueSegments, metadata: Metadata) -> PanopticMap:
    """Return the true segments with the contiguous ids of their categories."""
    things = metadata.thing_dataset_id_to_contiguous_id
    stuff = metadata.stuff_dataset_id_to_contiguous_id
    info = []
    for segment in truth.segments:
        category = segment["category_id"]
        isthing = category in things
        contiguous = (things if isthing else stuff)[category]
        info.append({"id": segment["id"], "isthing": isthing, "category_id": contiguous})
    return PanopticMap(truth.ids, info)
